/*
 * Test driver of spank/flags.c. Reads flag number, user (empty for root) and value from stdin, each
 * terminated by NUL. Writes one line per request: `ok` or `refused`, TAB, error of the policy file, TAB,
 * normal value or message. Flag number FLAG_COUNT checks a combination of flags; the value is then their
 * values in the order of enum flag, separated by spaces, each - if not given.
 */
#include "flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool together(char *value, const struct policy_file *file, char *normal, char *message) {
    const char *given[FLAG_COUNT] = {NULL};
    char *word = strtok(value, " ");
    for (int i = 0; i < FLAG_COUNT && word; i++, word = strtok(NULL, " "))
        given[i] = strcmp(word, "-") == 0 ? NULL : word;
    strcpy(normal, "fine");
    return flags_check_combination(given, file, message);
}

int main(int count, char *words[]) {
    static struct policy_file file;
    char *field[3] = {NULL, NULL, NULL};
    size_t size[3] = {0, 0, 0};
    for (;;) {
        for (int i = 0; i < 3; i++)
            if (getdelim(&field[i], &size[i], '\0', stdin) <= 0) {
                for (int j = 0; j < 3; j++)
                    free(field[j]);
                return 0;
            }
        /* Exact copies on the heap, so that the sanitizer sees a read or write past either end. */
        char *value = strdup(field[2]), *normal = malloc(FLAG_VALUE_MAX + 1),
             *message = malloc(FLAG_MESSAGE_MAX + 1);
        const char *problem = policies_load(&file, count > 1 ? words[1] : "");
        int flag = atoi(field[0]);
        bool ok = flag == FLAG_COUNT ? together(value, &file, normal, message)
                                     : flag_check((enum flag)flag, value, &file, *field[1] ? field[1] : NULL,
                                                  normal, message);
        printf("%s\t%s\t%s\n", ok ? "ok" : "refused", problem ? problem : "", ok ? normal : message);
        fflush(stdout);
        free(value);
        free(normal);
        free(message);
    }
}

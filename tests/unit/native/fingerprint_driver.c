/* Prints the fingerprint of a script and its arguments, given as files on the command line, or `none`. */
#include "fingerprint.h"

#include <stdio.h>
#include <unistd.h>

int main(int count, char *arguments[]) {
    char text[FINGERPRINT_SIZE];
    bool found = fingerprint(count - 1, arguments + 1, getuid(), text);
    puts(found ? text : "none");
    return 0;
}

#include "fingerprint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRIPT_MAX (4 << 20) /* bytes; Slurm's own default limit (max_script_size) */
#define DIRECTIVE "#SBATCH"
#define DIRECTIVE_LENGTH (sizeof(DIRECTIVE) - 1)

static void hash_bytes(uint64_t *digest, const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++)
        *digest = (*digest ^ (unsigned char)bytes[i]) * 0x100000001b3u;
}

/* State of the digest of a script. Lines that begin with #SBATCH are skipped. */
struct script {
    uint64_t digest;
    char start[DIRECTIVE_LENGTH]; /* start of the line while it may still be a directive */
    size_t length;
    enum { AT_START, HASHED, SKIPPED } line;
};

static void hash_line_start(struct script *script) {
    hash_bytes(&script->digest, script->start, script->length);
    script->length = 0;
    script->line = HASHED;
}

static void hash_byte(struct script *script, char byte) {
    if (script->line == AT_START) {
        if (byte == DIRECTIVE[script->length]) {
            script->start[script->length++] = byte;
            if (script->length == DIRECTIVE_LENGTH)
                script->line = SKIPPED;
            return;
        }
        hash_line_start(script);
    }
    if (script->line == HASHED)
        hash_bytes(&script->digest, &byte, 1);
    if (byte == '\n') {
        script->line = AT_START;
        script->length = 0;
    }
}

static bool read_script(int file, struct script *script) {
    char piece[16384];
    size_t total = 0;
    for (;;) {
        ssize_t got = read(file, piece, sizeof(piece));
        if (got < 0 || total + (size_t)got > SCRIPT_MAX)
            return false;
        if (got == 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            hash_byte(script, piece[i]);
        total += (size_t)got;
    }
    if (script->line == AT_START)
        hash_line_start(script);
    return true;
}

bool fingerprint(int count, char *const arguments[], uid_t owner, char text[FINGERPRINT_SIZE]) {
    struct script script = {.digest = 0xcbf29ce484222325u, .line = AT_START};
    struct stat status;
    if (count < 1 || !arguments || !arguments[0])
        return false;
    int file = open(arguments[0], O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return false;
    bool whole = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == owner &&
                 read_script(file, &script);
    close(file);
    for (int i = 1; whole && i < count && arguments[i]; i++) {
        hash_bytes(&script.digest, "", 1); /* a NUL separates the arguments */
        hash_bytes(&script.digest, arguments[i], strlen(arguments[i]));
    }
    snprintf(text, FINGERPRINT_SIZE, "%016" PRIx64, script.digest);
    return whole;
}

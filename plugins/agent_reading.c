/* See agent_reading.h. */
#include "agent_reading.h"

#include "exchange.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 20
#define TOTAL_MS 120
#define ANSWER_BYTES 1024
#define MAX_WATTS 1e9

static const char REQUEST[] = "{\"op\":\"acct_gather_energy\"}\n";

/*
 * Returns the text after `"key":`, or NULL. senergyd sends compact JSON without nested objects. The only
 * strings in it that another program chose are error messages, and those are in answers without `"ok":true`
 * at their start.
 */
static const char *value_of(const char *answer, const char *key) {
    const char *at = strstr(answer, key);

    return at ? at + strlen(key) : NULL;
}

static bool parse_joules(const char *text, uint64_t *joules) {
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *joules = strtoull(text, &end, 10);
    return errno == 0 && (*end == ',' || *end == '}') && *joules <= INT64_MAX;
}

static bool parse_watts(const char *text, uint32_t *watts) {
    char *end;
    double value;

    if (!isdigit((unsigned char)*text))
        return false;
    value = strtod(text, &end);
    if (end == text || !(value >= 0 && value <= MAX_WATTS))
        return false;
    *watts = (uint32_t)(value + 0.5);
    return true;
}

static bool parse_epoch(const char *text, char epoch[EPOCH_BYTES]) {
    size_t length = strcspn(text, "\"");

    if (length == 0 || length >= EPOCH_BYTES || text[length] != '"')
        return false;
    memcpy(epoch, text, length);
    epoch[length] = '\0';
    return true;
}

enum agent_status agent_parse(const char *answer, struct agent_reading *reading, const char **problem) {
    const char *epoch, *joules, *watts;

    if (strncmp(answer, "{\"ok\":true", strlen("{\"ok\":true")) != 0) {
        *problem = "senergyd refused the request";
        return AGENT_FAILED;
    }
    if (strstr(answer, "\"known\":false"))
        return AGENT_KNOWS_NOTHING;
    epoch = value_of(answer, "\"epoch\":\"");
    joules = value_of(answer, "\"joules\":");
    watts = value_of(answer, "\"watts\":");
    if (!epoch || !parse_epoch(epoch, reading->epoch) || !joules || !parse_joules(joules, &reading->joules)) {
        *problem = "senergyd's answer has another form";
        return AGENT_FAILED;
    }
    reading->watts_known = watts && parse_watts(watts, &reading->watts);
    return AGENT_ANSWERED;
}

enum agent_status agent_read(const char *socket_path, struct agent_reading *reading, const char **problem) {
    char answer[ANSWER_BYTES];

    *problem =
        exchange(socket_path, REQUEST, sizeof(REQUEST) - 1, CONNECT_MS, TOTAL_MS, answer, sizeof(answer));
    return *problem ? AGENT_FAILED : agent_parse(answer, reading, problem);
}

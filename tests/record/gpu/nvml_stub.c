/* A libnvidia-ml.so.1 that plays a script, for the real pynvml to load.
 *
 * $NVML_STUB/script   one line a look: reasons corrected uncorrected rows_corrected rows_uncorrected pending failure
 *                     xid gone; each question for the clocks' reasons goes one line on, the last line stays
 * $NVML_STUB/log      what was called, and which line was reached, by which process
 * $NVML_STUB_REFUSE   "function=code,...": what refuses, with which nvmlReturn_t; "function=hang" never returns
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { REASONS, CORRECTED, UNCORRECTED, ROWS_CORRECTED, ROWS_UNCORRECTED, PENDING, FAILURE, XID, GONE, FIELDS };
enum { LINES = 64, XID_CRITICAL = 8 };

typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;

static const char *GPU = "GPU-00000000-0000-0000-0000-000000000001";
static const char *INSTANCE = "MIG-00000000-0000-0000-0000-000000000002";
static long script[LINES][FIELDS];
static int lines, line = -1, is_mig;
static long xid;

static long now(int field) { return script[line < 0 ? 0 : line][field]; }

static void path(char *to, const char *name) { snprintf(to, 512, "%s/%s", getenv("NVML_STUB"), name); }

static void note(const char *what) {
    char name[512], text[128];
    path(name, "log");
    int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0644);
    int length = snprintf(text, sizeof text, "%s %d\n", what, getpid());
    if (write(file, text, length) != length) abort();
    close(file);
}

static void read_script(void) {
    char name[512];
    path(name, "script");
    FILE *file = fopen(name, "r");
    for (lines = 0; lines < LINES; lines++)
        for (int field = 0; field < FIELDS; field++)
            if (fscanf(file, "%li", &script[lines][field]) != 1) { fclose(file); return; }
    fclose(file);
}

static int refused(const char *function) {
    const char *wishes = getenv("NVML_STUB_REFUSE");
    const char *found = wishes ? strstr(wishes, function) : NULL;
    if (found && found[strlen(function)] == '=') {
        const char *code = found + strlen(function) + 1;
        if (!strncmp(code, "hang", 4)) { note("hangs"); for (;;) pause(); }
        return atoi(code);
    }
    return line >= 0 && now(GONE) ? GPU_IS_LOST : SUCCESS;
}

#define UNLESS_REFUSED do { int code = refused(__func__); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; UNLESS_REFUSED; read_script(); note("init"); return SUCCESS; }
int nvmlShutdown(void) { note("shutdown"); return SUCCESS; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    is_mig = !strcmp(uuid, INSTANCE);
    *device = &script;
    return is_mig || !strcmp(uuid, GPU) ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) { *device = instance; return SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    (void)device; snprintf(uuid, length, "%s", GPU); return SUCCESS;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    (void)device; UNLESS_REFUSED; *current = *pending = is_mig; return SUCCESS;
}

static int look(unsigned long long *reasons, const char *function) {
    char reached[32];
    if (line + 1 < lines) {
        snprintf(reached, sizeof reached, "line %d", ++line);
        xid = now(XID);
    } else
        strcpy(reached, "beyond");
    note(reached);
    *reasons = now(REASONS);
    return refused(function);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    (void)device; UNLESS_REFUSED; return look(reasons, __func__);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    (void)device; UNLESS_REFUSED; return look(reasons, __func__);
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors) {
    (void)device; (void)counter; UNLESS_REFUSED;
    *errors = now(kind ? UNCORRECTED : CORRECTED);
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure) {
    (void)device; UNLESS_REFUSED;
    *corrected = now(ROWS_CORRECTED); *uncorrected = now(ROWS_UNCORRECTED);
    *pending = now(PENDING); *failure = now(FAILURE);
    return SUCCESS;
}

/* What the agent and the readings ask for: always the same. Of the errors of NVLinks it counts those of recoveries not. */
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    (void)device; UNLESS_REFUSED; *milliwatts = 612500; return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    (void)device; UNLESS_REFUSED; *millijoules = 5000000000001ULL; return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *megahertz) {
    (void)device; UNLESS_REFUSED; *megahertz = type == 1 ? 1755 : 0; return SUCCESS;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)device; UNLESS_REFUSED; *celsius = sensor == 0 ? 61 : 0; return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    (void)device; UNLESS_REFUSED; rates[0] = 97; rates[1] = 40; return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union { double real; unsigned small; unsigned long long large; } value;
} Field;

enum { CRC_FLIT = 38, CRC_DATA = 45, REPLAY = 52, UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, NOT_SUPPORTED = 3 };

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    (void)device; UNLESS_REFUSED;
    for (Field *one = fields; one < fields + count; one++) {
        one->code = SUCCESS;
        one->type = one->field == CRC_FLIT ? UNSIGNED_INT : UNSIGNED_LONG_LONG;
        if (one->field == CRC_FLIT) one->value.small = 1;
        else if (one->field == CRC_DATA) one->value.large = 20;
        else if (one->field == REPLAY) one->value.large = 1ULL << 40;
        else one->code = NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) { UNLESS_REFUSED; *set = &script; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)device; (void)set; UNLESS_REFUSED; return types == XID_CRITICAL ? SUCCESS : NOT_FOUND;
}
int nvmlEventSetFree(void *set) { (void)set; note("free"); return SUCCESS; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    (void)set; UNLESS_REFUSED;
    if (!xid) { usleep(milliseconds * 1000); return TIMEOUT; }
    *event = (Event){.type = XID_CRITICAL, .data = xid};
    xid = 0;
    return SUCCESS;
}

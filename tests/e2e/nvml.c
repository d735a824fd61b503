/*
 * Stands in for the library of NVIDIA's driver. There are two devices; the file `0` or `1` in the directory that FAKE_NVML
 * names says what one is doing, as `UTILISATION USED TOTAL [PID MEMORY]...`, with memory in MiB; the PID `task` stands for the one
 * in the file `pid`, if there is one. A device without a file has fallen off the bus. Each look adds a line to `asked`. While there is a file `hang`, nobody gets an answer.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { DEVICES = 2 };
#define MIB (1024ull * 1024)

typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef const char *Device;

static const char *const names[DEVICES] = {"0", "1"};

static FILE *file(const char *name, const char *mode) {
    char path[4096];
    const char *dir = getenv("FAKE_NVML");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : ".", name);
    return fopen(path, mode);
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.65.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = DEVICES;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    if (index >= DEVICES) return INVALID;
    *device = names[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-fake-%s", device);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    char found[64];
    for (int index = 0; index < DEVICES; index++) {
        nvmlDeviceGetUUID(names[index], found, sizeof found);
        if (strcmp(found, uuid)) continue;
        *device = names[index];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilisation *utilisation) {
    FILE *hang = file("hang", "r");
    while (hang) pause();
    FILE *asked = file("asked", "a");
    if (asked) {
        fprintf(asked, "%s\n", device);
        fclose(asked);
    }
    FILE *found = file(device, "r");
    if (!found) return LOST;
    utilisation->memory = 0;
    int count = fscanf(found, "%u", &utilisation->gpu);
    fclose(found);
    return count == 1 ? SUCCESS : LOST;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory *memory) {
    FILE *found = file(device, "r");
    if (!found) return LOST;
    int count = fscanf(found, "%*u %llu %llu", &memory->used, &memory->total);
    fclose(found);
    memory->used *= MIB;
    memory->total *= MIB;
    memory->free = memory->total - memory->used;
    memory->reserved = 0;
    return count == 2 ? SUCCESS : LOST;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
    FILE *found = file(device, "r");
    if (!found) return LOST;
    unsigned room = processes ? *count : 0;
    *count = 0;
    char name[32];
    unsigned long long used;
    if (fscanf(found, "%*u %*u %*u") == EOF) room = 0;
    while (fscanf(found, "%31s %llu", name, &used) == 2) {
        unsigned pid = atoi(name);
        FILE *task = strcmp(name, "task") ? NULL : file("pid", "r");
        if (task) {
            if (fscanf(task, "%u", &pid) != 1) pid = 0;
            fclose(task);
        }
        if (pid == 0) continue;
        if (*count < room) processes[*count] = (Process){pid, used * MIB, ~0u, ~0u};
        ++*count;
    }
    fclose(found);
    return *count > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
    (void)device, (void)processes;
    *count = 0;
    return SUCCESS;
}

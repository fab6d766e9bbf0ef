"""Stand-ins for CUDA's two libraries, without a GPU: memory is the host's, and a launch is a line on stderr.

TVM's own runtime runs over them. A line begins with LAUNCH, or with CAPTURED for a launch on the stream that is
captured, and has the name of the kernel and the launch. With POINTERS=FIRST,COUNT in the environment it has these
arguments of the kernel too, as pointers. The launch of a CUDA graph is a line GRAPH; if memory at one of the POINTERS
of its kernels is not allocated any more, it is a line FREED. Freed memory is not used again.

The GPU is an H200. A process with a percentage of MPS in its environment is a client with that part of the SMs.

A tensor map is encoded if it keeps the rules in NVIDIA's `cuda.h`; otherwise a line names the rule. With TENSOR_MAPS_AT
in the environment, the lines of a kernel have its tensor maps, the innermost dimension first. Its text is such as
"main_kernel 0:3 1:8": by tensor, the places of its pointer and of its tensor map among the kernel's arguments.
"""

import subprocess
from pathlib import Path

LAUNCH, CAPTURED, GRAPH, FREED = "launch", "captured", "graph", "freed"
SMS = 132
"""of the GPU"""

_DRIVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define OVERRIDDEN __attribute__((weak)) /* by a driver that computes */
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } Launch;
static int module;
static void *of_the_runtime(const char *name) { /* 0 where a process has not loaded it */
  void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
  return runtime ? dlsym(runtime, name) : 0;
}
static const char *percentage(void) { return getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); }
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 141ull << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = percentage() ? SMS * atoi(percentage()) / 100 : SMS; return 0;
    case 75: *value = 9; return 0; /* the compute capability is 9.0 */
    case 133: *value = percentage() != 0; return 0;
    default: *value = 0; return 0;
  }
}
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in"); return 0; }
OVERRIDDEN int cuGetErrorName(int error, const char **text) { *text = "error"; return 0; }
OVERRIDDEN int cuGetErrorString(int error, const char **text) { *text = "error"; return 0; }
OVERRIDDEN int cuModuleLoadData(void **made, const void *image) {
  *made = &module;
  return memcmp(image, "\177ELF", 4) != 0;
}
int cuModuleUnload(void *unloaded) { return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
#define RULE(holds) if (!(holds)) { fprintf(stderr, "tensor map breaks the rule %s\n", #holds); return 1; }
typedef struct { void *address; int type, swizzle, rank; unsigned dims[5], strides[4]; unsigned short box[5]; } Map;
int cuTensorMapEncodeTiled(void *made, unsigned type, unsigned rank, void *address, const unsigned long *dims,
                           const unsigned long *strides, const unsigned *box, const unsigned *steps,
                           unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}, spans[] = {1 << 20, 32, 64, 128, 128, 128, 128};
  Map map = {address, type, swizzle, rank};
  RULE((unsigned long)made % 64 == 0)
  RULE(type <= 12)
  RULE(rank >= 1 && rank <= 5)
  RULE((unsigned long)address % 16 == 0)
  RULE(interleave == 0) /* others have rules of their own */
  RULE(swizzle <= 6 && promotion <= 3 && fill <= 1)
  RULE(fill == 0 || type >= 6)
  RULE(box[0] * sizes[type] % 16 == 0)
  RULE(box[0] * sizes[type] <= spans[swizzle])
  unsigned long within = sizes[type]; /* bytes from one element of a dimension to the next */
  for (unsigned at = 0; at < rank; ++at) {
    RULE(dims[at] >= 1 && dims[at] <= 1ul << 31)
    RULE(box[at] >= 1 && box[at] <= 256)
    RULE(at == 0 || steps[at] >= 1 && steps[at] <= 8)
    map.dims[at] = dims[at];
    map.box[at] = box[at];
    if (at + 1 == rank) break;
    RULE(strides[at] % 16 == 0 && strides[at] < 1ul << 40)
    RULE(strides[at] >= dims[at] * within)
    map.strides[at] = within = strides[at];
  }
  memset(made, 0, 128);
  memcpy(made, &map, sizeof(map));
  return 0;
}
static void show(const Map *map, const void *tensor) {
  fprintf(stderr, " map of type %d dims", map->type);
  for (int at = 0; at < map->rank; ++at) fprintf(stderr, " %u", map->dims[at]);
  fprintf(stderr, " strides");
  for (int at = 0; at + 1 < map->rank; ++at) fprintf(stderr, " %u", map->strides[at]);
  fprintf(stderr, " box");
  for (int at = 0; at < map->rank; ++at) fprintf(stderr, " %u", map->box[at]);
  fprintf(stderr, " swizzle %d%s", map->swizzle, map->address == tensor ? "" : " of another tensor");
}
OVERRIDDEN int cuModuleGetFunction(void **function, void *from, const char *name) {
  *function = strdup(name);
  return 0;
}
OVERRIDDEN int cuLaunchKernelEx(const Launch *launch, void *function, void **arguments, void **extra) {
  void **captured_stream = of_the_runtime("captured_stream"), (*remember)(void *) = of_the_runtime("remember");
  int captured = captured_stream && *captured_stream && launch->stream == *captured_stream;
  fprintf(stderr, "%s %s blocks %u threads %u shared %u", captured ? "captured" : "launch", (char *)function,
          launch->grid[0], launch->block[0], launch->shared);
  int first = 0, count = 0;
  if (getenv("POINTERS")) sscanf(getenv("POINTERS"), "%d,%d", &first, &count);
  for (int at = first; at < first + count; ++at) {
    void *pointer = *(void **)arguments[at];
    fprintf(stderr, " %p", pointer);
    if (captured) remember(pointer);
  }
  const char *maps = getenv("TENSOR_MAPS_AT");
  char kernel[256];
  int tensor, map, size;
  if (maps && sscanf(maps, "%255s%n", kernel, &size) == 1 && !strcmp(kernel, function))
    while (sscanf(maps += size, "%d:%d%n", &tensor, &map, &size) == 2)
      show(arguments[map], *(void **)arguments[tensor]);
  fprintf(stderr, "\n");
  return 0;
}
"""
_RUNTIME = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef struct { char *begin; size_t size; } Memory;
void *captured_stream;
static Memory memory[1 << 16];
static void *in_graphs[4096];
static int allocated, remembered;
void remember(void *pointer) { in_graphs[remembered++] = pointer; }
static int is_allocated(char *pointer) {
  for (int at = 0; at < allocated; ++at)
    if (pointer >= memory[at].begin && pointer < memory[at].begin + memory[at].size) return 1;
  return 0;
}
int cudaStreamBeginCapture(void *stream, int mode) { captured_stream = stream; return 0; }
static void call_driver(const char *name, void *graph) { /* if it computes */
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void (*called)(void *) = driver ? dlsym(driver, name) : 0;
  if (called) called(graph);
}
int memory_at(int place, char **begin, size_t *size) {
  if (place >= allocated) return 0;
  *begin = memory[place].begin;
  *size = memory[place].size;
  return 1;
}
int cudaStreamEndCapture(void *stream, void **graph) {
  *graph = malloc(1);
  captured_stream = 0;
  call_driver("end_of_capture", *graph);
  return 0;
}
int cudaGraphInstantiate(void **made, void *graph, long flags) { *made = graph; return 0; }
int cudaGraphLaunch(void *graph, void *stream) {
  int freed = 0;
  for (int at = 0; at < remembered; ++at) freed += !is_allocated(in_graphs[at]);
  fputs(freed ? "freed\n" : "graph\n", stderr);
  call_driver("replay", graph);
  return 0;
}
int cudaEventCreate(double **event) { *event = calloc(1, sizeof(double)); return 0; }
int cudaEventDestroy(double *event) { free(event); return 0; }
int cudaEventRecord(double *event, void *stream) { /* a launch ends before it returns */
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *event = now.tv_sec * 1e3 + now.tv_nsec / 1e6;
  return 0;
}
int cudaEventElapsedTime(float *ms, const double *start, const double *stop) { *ms = *stop - *start; return 0; }
int cudaStreamCreate(void **stream) { *stream = malloc(1); return 0; }
int cudaStreamCreateWithFlags(void **stream, int flags) { return cudaStreamCreate(stream); }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024;
  return 0;
}
int cudaGetDeviceProperties(void *properties, int device) { memset(properties, 0, 64); return 0; }
int cudaMallocHost(void **at, size_t size) { *at = aligned_alloc(256, (size + 255) / 256 * 256); return 0; }
int cudaMalloc(void **at, size_t size) {
  cudaMallocHost(at, size);
  memory[allocated++] = (Memory){*at, size};
  return 0;
}
int cudaFree(void *freed) {
  for (int at = 0; at < allocated; ++at)
    if (memory[at].begin == freed) memory[at].size = 0;
  return 0;
}
int cudaFreeHost(void *at) { free(at); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  memcpy(to, from, size);
  return 0;
}
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream) {
  memcpy(to, from, size);
  return 0;
}
int cudaMemGetInfo(size_t *free, size_t *all) { *free = *all = 1ull << 32; return 0; }
const char *cudaGetErrorName(int error) { return "error"; }
const char *cudaGetErrorString(int error) { return "error"; }
"""
_NOTHING = (
    *(f"cudaStream{name}" for name in ("Destroy", "Synchronize", "WaitEvent")),
    *("cudaEventSynchronize", "cudaGetLastError", "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaPeekAtLastError"),
)
"""functions that succeed and do nothing"""


def stand_in(folder: Path, *overriding: str) -> None:
    """Make both libraries in the folder, for LD_LIBRARY_PATH. `overriding`: files of C++ with functions of the driver
    in place of those here.
    """
    nothing = "".join(f"int {name}(void) {{ return 0; }}\n" for name in _NOTHING)
    (folder / "version").write_text("libcudart.so.13 { global: *; };")
    for name, text, more in (
        ("libcuda.so.1", _DRIVER, ["-O2", *overriding, "-lstdc++"] if overriding else []),
        ("libcudart.so.13", _RUNTIME + nothing, ["-Wl,--version-script=version"]),
    ):
        source = folder / f"{name}.c"
        source.write_text(text)
        made = [
            "gcc",
            "-w",
            f"-DSMS={SMS}",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            "-o",
            name,
            source.name,
            *more,
        ]
        subprocess.run(made, check=True, cwd=folder)

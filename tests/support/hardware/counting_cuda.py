"""Stand-ins for CUDA's driver and its runtime that compute nothing, and write each launch down. TVM's own runtime for
GPUs runs on them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

LAUNCH, CAPTURED, GRAPH = "launch", "captured", "graph"
"""lines of the log: a kernel, one on the stream that is captured, a whole graph"""
LOG = "FRACTUNE_COUNTED_LAUNCHES"
"""variable of the environment: the log's file"""

_DRIVER = """
typedef struct { unsigned extents[6], shared; void *stream; } Config;
static int one;
void counted(void *stream);
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in"); return 0; }
int cuFuncSetAttribute(void *f, int attribute, int value) { return 0; }
int cuGetErrorName(int error, const char **text) { *text = "error"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "error"; return 0; }
int cuLaunchKernelEx(const Config *config, void *f, void **params, void **extra) { counted(config->stream); return 0; }
int cuModuleGetFunction(void **f, void *module, const char *name) { *f = &one; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = &one; return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuTensorMapEncodeTiled(void *map) { return 0; }
"""
_RUNTIME = """
static void *captured_on;
static void note(const char *what) {
  FILE *log = fopen(getenv(LOG), "a"); fprintf(log, "%s\\n", what); fclose(log); }
void counted(void *stream) { note(captured_on && stream == captured_on ? CAPTURED : LAUNCH); }
int cudaStreamBeginCapture(void *stream, int mode) { captured_on = stream; return 0; }
int cudaStreamEndCapture(void *stream, void **graph) { captured_on = 0; *graph = &captured_on; return 0; }
int cudaGraphInstantiate(void **made, void *graph, long flags) { *made = graph; return 0; }
int cudaGraphLaunch(void *graph, void *stream) { note(GRAPH); return 0; }
int cudaStreamCreate(void **stream) { *stream = malloc(1); return 0; }
int cudaStreamCreateWithFlags(void **stream, int flags) { return cudaStreamCreate(stream); }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = 1024; return 0; }
int cudaGetDeviceProperties(void *properties, int device) { memset(properties, 0, 64); return 0; }
int cudaMalloc(void **memory, size_t size) { *memory = calloc(1, size + 256); return 0; }
int cudaMallocHost(void **memory, size_t size) { return cudaMalloc(memory, size); }
int cudaFree(void *memory) { free(memory); return 0; }
int cudaFreeHost(void *memory) { free(memory); return 0; }
int cudaMemcpyAsync(void *to, const void *from, size_t n, int k, void *s) { memcpy(to, from, n); return 0; }
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, void *s) { memcpy(to, from, n); return 0; }
int cudaMemGetInfo(size_t *available, size_t *all) { *available = *all = 1ull << 32; return 0; }
const char *cudaGetErrorName(int error) { return "error"; }
const char *cudaGetErrorString(int error) { return "error"; }
"""
_SILENT = (
    *(f"cudaEvent{what}" for what in ("Create", "Destroy", "ElapsedTime", "Record", "Synchronize")),
    *(f"cudaStream{what}" for what in ("Destroy", "Synchronize", "WaitEvent")),
    *("cudaGetLastError", "cudaGraphDestroy", "cudaGraphExecDestroy", "cudaPeekAtLastError", "cudaSetDevice"),
)
_HEADERS = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string"))
_RUNTIME_NAME = "libcudart.so.13"


def make_libraries(folder: Path) -> None:
    """Compile both into the folder, for LD_LIBRARY_PATH. The driver's needs the runtime's, which is loaded first."""
    silent = "".join(f"int {name}(void) {{ return 0; }}\n" for name in _SILENT)
    (folder / "versions").write_text(f"{_RUNTIME_NAME} {{ global: *; }};")
    _compile(folder, _RUNTIME_NAME, _HEADERS + _RUNTIME + silent, "-Wl,--version-script=versions")
    _compile(folder, "libcuda.so.1", _HEADERS + _DRIVER, _RUNTIME_NAME)


def _compile(folder: Path, name: str, source: str, *options: str) -> None:
    (folder / f"{name}.c").write_text(source)
    words = {"LAUNCH": LAUNCH, "CAPTURED": CAPTURED, "GRAPH": GRAPH, "LOG": LOG}
    options += tuple(f'-D{word}="{value}"' for word, value in words.items())
    command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, f"{name}.c", *options]
    subprocess.run(command, check=True, cwd=folder)

/* The calls by which TVM's CUDA runtime launches and times kernels, answered for a GPU that does not exist.
   A kernel takes as long as its launch; a module is PTX, which has to have the kernel that is asked for. */
#include <stdlib.h>
#include <string.h>

#define LAUNCH_MS 0.00325f

typedef struct {
  unsigned grid[3], block[3], shared_bytes;
} Shape;

static long launches;
static const char *image;

int cuModuleLoadData(void **module, const void *data) {
  image = data;
  *module = &image;
  return strstr(image, ".version") == NULL;
}
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  const char *entry = strstr(image, ".entry ");
  *function = &launches;
  return entry == NULL || strncmp(entry + strlen(".entry "), name, strlen(name)) != 0;
}
int cuLaunchKernelEx(const Shape *shape, void *function, void **arguments, void **extra) {
  ++launches;
  return shape->grid[0] != 1 || shape->block[0] != 1 || shape->shared_bytes != 0;
}
int cuGetErrorName(int error, const char **text) { *text = "refused by the stand-in"; return 0; }

int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = 1; return 0; }
int cudaEventCreate(long **event) { *event = malloc(sizeof(long)); return 0; }
int cudaEventDestroy(long *event) { free(event); return 0; }
int cudaEventRecord(long *event, void *stream) { *event = launches; return 0; }
int cudaEventSynchronize(long *event) { return 0; }
int cudaEventElapsedTime(float *ms, long *start, long *stop) { *ms = (*stop - *start) * LAUNCH_MS; return 0; }
int cudaStreamSynchronize(void *stream) { return 0; }
int cudaGetLastError(void) { return 0; }

/* The library has to be whole, whatever is called. */
#define UNUSED(name) \
  int name(void) { abort(); }
UNUSED(cuDeviceGetName)
UNUSED(cuFuncSetAttribute)
UNUSED(cuGetErrorString)
UNUSED(cuTensorMapEncodeTiled)
UNUSED(cudaFree)
UNUSED(cudaFreeHost)
UNUSED(cudaGetDeviceProperties)
UNUSED(cudaGetErrorName)
UNUSED(cudaGetErrorString)
UNUSED(cudaGraphDestroy)
UNUSED(cudaGraphExecDestroy)
UNUSED(cudaGraphInstantiate)
UNUSED(cudaGraphLaunch)
UNUSED(cudaMalloc)
UNUSED(cudaMallocHost)
UNUSED(cudaMemGetInfo)
UNUSED(cudaMemcpyAsync)
UNUSED(cudaMemcpyPeerAsync)
UNUSED(cudaPeekAtLastError)
UNUSED(cudaStreamBeginCapture)
UNUSED(cudaStreamCreate)
UNUSED(cudaStreamCreateWithFlags)
UNUSED(cudaStreamDestroy)
UNUSED(cudaStreamEndCapture)
UNUSED(cudaStreamWaitEvent)

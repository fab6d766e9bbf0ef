// CUDA C as TVM writes it, for a C++ compiler of the processor. `executor.cc` runs the threads.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_memory")))

struct Dim {
  unsigned x, y, z;
};
extern "C" {
// The same in every call of one thread, so the compiler may call them once.
Dim thread_index() __attribute__((const));
Dim block_index() __attribute__((const));
Dim block_extent() __attribute__((const));
Dim grid_extent() __attribute__((const));
unsigned char *dynamic_memory() __attribute__((const));
int lane() __attribute__((const));
void barrier(int line);
unsigned active_mask(int line);
void exchange(unsigned mask, int from, const void *given, void *taken, unsigned size, int line);
void sync_warp(unsigned mask, int line);
void copy_async(void *to, const void *from, unsigned size);
void commit_copies();
void wait_for_copies(unsigned groups_left);
}
#define threadIdx thread_index()
#define blockIdx block_index()
#define blockDim block_extent()
#define gridDim grid_extent()
#define __syncthreads() barrier(__LINE__)
#define __activemask() active_mask(__LINE__)
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { sync_warp(mask, line); }

template <class T> T taken_from(int from, unsigned mask, T value, int line) {
  T taken;
  exchange(mask, from, &value, &taken, sizeof(T), line);
  return taken;
}
// A lane takes its own value where the other lane is not in its part of the warp.
inline int within(int from, int width) { return lane() / width == from / width && from >= 0 ? from : lane(); }
#define SHUFFLE(name, from)                                                                                           \
  template <class T> T name(unsigned mask, T value, int by, int width = 32, int line = __builtin_LINE()) {            \
    return taken_from(from, mask, value, line);                                                                       \
  }
SHUFFLE(__shfl_sync, lane() / width * width + by % width)
SHUFFLE(__shfl_down_sync, within(lane() + by, width))
SHUFFLE(__shfl_up_sync, within(lane() - by, width))
SHUFFLE(__shfl_xor_sync, within(lane() ^ by, width))

typedef _Float16 half;
typedef half __half;
// By reference: g++ calls no function of the executor where the result of a call is written to memory.
#define VECTORS(T, name, bytes)                                                                                       \
  struct __align__(2 * bytes) name##2 { T x, y; };                                                                    \
  struct name##3 { T x, y, z; };                                                                                      \
  struct __align__(bytes < 8 ? 4 * bytes : 16) name##4 { T x, y, z, w; };                                             \
  inline const name##2 &make_##name##2(T x, T y, name##2 &&made = {}) { return made = {x, y}; }                       \
  inline const name##3 &make_##name##3(T x, T y, T z, name##3 &&made = {}) { return made = {x, y, z}; }               \
  inline const name##4 &make_##name##4(T x, T y, T z, T w, name##4 &&made = {}) { return made = {x, y, z, w}; }
VECTORS(signed char, char, 1)
VECTORS(unsigned char, uchar, 1)
VECTORS(short, short, 2)
VECTORS(unsigned short, ushort, 2)
VECTORS(int, int, 4)
VECTORS(unsigned, uint, 4)
VECTORS(float, float, 4)
VECTORS(double, double, 8)
VECTORS(long long, longlong, 8)
struct __align__(4) half2 { half x, y; };
typedef half2 __half2;
inline const half2 &make_half2(half x, half y, half2 &&made = {}) { return made = {x, y}; }

inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return x; }
inline half __float2half_rn(float x) { return x; }
inline bool __hgt(half a, half b) { return a > b; }
inline bool __hlt(half a, half b) { return a < b; }
inline half __hmax(half a, half b) { return std::fmax(float(a), float(b)); }
inline half __hmin(half a, half b) { return std::fmin(float(a), float(b)); }
#define OF_HALF(name) inline half h##name(half x) { return std::name(float(x)); }
OF_HALF(exp) OF_HALF(exp2) OF_HALF(log) OF_HALF(log2) OF_HALF(sqrt) OF_HALF(sin) OF_HALF(cos) OF_HALF(tanh)
OF_HALF(floor) OF_HALF(ceil) OF_HALF(trunc) OF_HALF(rint)
inline half hrsqrt(half x) { return 1 / std::sqrt(float(x)); }
inline half hrcp(half x) { return 1 / float(x); }
inline half __habs(half x) { return std::fabs(float(x)); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __int_as_float(int bits) { float x; std::memcpy(&x, &bits, 4); return x; }
#define CUDART_INF double(INFINITY)
#define CUDART_INF_F INFINITY
#define CUDART_NAN double(NAN)
#define CUDART_NAN_F NAN
#define __cvta_generic_to_shared(address) 0 // for assembly, which has become calls
template <class T> T __ldg(const T *at) { return *at; }
template <class A, class B> auto max(A a, B b) { return a > b ? a : b; }
template <class A, class B> auto min(A a, B b) { return a < b ? a : b; }
template <class T> int __dp4a(T a, T b, int sum) {
  typedef std::conditional_t<std::is_signed<T>::value, signed char, unsigned char> Byte;
  for (int at = 0; at < 32; at += 8) sum += int(Byte(a >> at)) * int(Byte(b >> at));
  return sum;
}

// Tensor cores: the first lane of a warp holds all of a fragment, and computes in float32 or in whole numbers.
namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = row_major> struct fragment {
  static const int ROWS = std::is_same<Use, matrix_b>::value ? K : M, COLUMNS = std::is_same<Use, matrix_a>::value ? K : N;
  static const bool BY_ROWS = std::is_same<Layout, row_major>::value;
  T at[ROWS][COLUMNS];
};
template <class F, class Do> void each(F &, Do apply) {
  if (lane() == 0)
    for (int row = 0; row < F::ROWS; ++row)
      for (int column = 0; column < F::COLUMNS; ++column) apply(row, column);
}
template <class F, class T> void fill_fragment(F &f, T value) { each(f, [&](int i, int j) { f.at[i][j] = value; }); }
template <class F, class T> void load_matrix_sync(F &f, const T *from, unsigned stride) {
  each(f, [&](int i, int j) { f.at[i][j] = from[F::BY_ROWS ? i * stride + j : j * stride + i]; });
}
template <class F, class T> void store_matrix_sync(T *to, const F &f, unsigned stride, layout_t layout) {
  each(f, [&](int i, int j) { to[layout == mem_row_major ? i * stride + j : j * stride + i] = f.at[i][j]; });
}
template <class D, class A, class B, class C> void mma_sync(D &d, const A &a, const B &b, const C &c) {
  typedef std::conditional_t<std::is_integral<std::decay_t<decltype(c.at[0][0])>>::value, int, float> Sum;
  each(d, [&](int i, int j) {
    Sum sum = c.at[i][j];
    for (int k = 0; k < A::COLUMNS; ++k) sum += Sum(a.at[i][k]) * Sum(b.at[k][j]);
    d.at[i][j] = sum;
  });
}
} }

// What the executor knows of a kernel.
struct Kernel {
  void (*function)();
  void (*call)(void (*)(), void **);
  const unsigned *bytes; // of each argument; 0 behind the last one
  char *shared_begin, *shared_end; // of the module
};
extern "C" char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));
// Arguments are the launch's, not the kernel's.
template <class... A, size_t... I>
__attribute__((no_sanitize("thread"))) void call_by(void (*kernel)(A...), void **given, std::index_sequence<I...>) {
  kernel(*(std::decay_t<A> *)given[I]...);
}
template <class... A> Kernel described(void (*kernel)(A...)) {
  static const unsigned bytes[] = {sizeof(A)..., 0};
  auto call = [](void (*function)(), void **given) {
    call_by((void (*)(A...))function, given, std::index_sequence_for<A...>{});
  };
  return {(void (*)())kernel, call, bytes, __start_shared_memory, __stop_shared_memory};
}
#define KERNEL(name) extern "C" { Kernel name##_on_cpu = described(name); }

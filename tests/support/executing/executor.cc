// A GPU for kernels that were compiled for the processor, inside the stand-in for CUDA's driver.
//
// A thread is a fiber. The blocks run one after the other, and the threads of a block one at a time, until each of them
// waits or has ended. ORDER in the environment: `forward`, `backward` or `shuffled` blocks and threads. Kernels may read
// shared memory that was not written, if they drop what follows: its bytes differ in each order, NaN in the first.
//
// The compiler calls a function here before each access to memory (-fsanitize=thread). A launch fails for:
// - two threads that use the same shared memory, one of them to change it, without a barrier between them
// - a use of shared memory to which an asynchronous copy is under way
// - an access outside of all tensors, or one that is not aligned to its size
// - threads that wait at different barriers, or for lanes of their warp that do not come
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>
#include <algorithm>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace {
const unsigned WARP = 32, MOST_THREADS = 1024, MOST_SHARED = 227 << 10;
const size_t STACK = 4 << 20; // of addresses
const int NOT_ALIGNED = 716, ILLEGAL = 700, FAILED = 719, INVALID = 1; // CUDA's errors

struct Dim { unsigned x, y, z; };
struct Kernel {
  void (*function)();
  void (*call)(void (*)(), void **);
  const unsigned *bytes;
  char *shared_begin, *shared_end;
};
struct Launch { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; };
struct Recorded { const Kernel *kernel; Launch launch; std::vector<std::vector<char>> arguments; };
struct Copy { char *to; const char *from; unsigned size; };
struct Range { char *begin, *end; };
struct Rewritten { const char *at; char before; int writer; };

enum State { RUNS, AT_BARRIER, IN_WARP, ENDED };
struct Thread {
  ucontext_t context;
  Dim index;
  unsigned number;
  State state = RUNS;
  int line = 0; // where it waits
  unsigned mask = 0, size = 0; // of an operation of its warp
  int from = 0;
  const void *given = nullptr;
  void *taken = nullptr;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::vector<Rewritten> rewrites; // of what another thread wrote: with the same bytes, as they should be now
  unsigned warp() const { return number / WARP; }
};

const int NOBODY = -1, SEVERAL = -2;
struct Cell { // the last uses of a byte of shared memory
  unsigned written = 0, read = 0; // when
  int writer = NOBODY, reader = NOBODY, reading_warp = NOBODY;
  bool arrives = false; // by a copy that was not waited for
};

Dim block_at, extent, grid;
std::vector<std::unique_ptr<Thread>> threads;
Thread *me;
ucontext_t home;
const Kernel *kernel;
void **arguments;
char dynamic[MOST_SHARED] __attribute__((aligned(1024)));
unsigned dynamic_bytes;
std::vector<char *> stacks;
std::vector<Range> tensors;
std::vector<Cell> cells; // of static shared memory, then of dynamic shared memory
unsigned now = 1, block_began, last_barrier; // steps of time
std::vector<unsigned> last_sync; // by warp
int failure;
std::string message = "error";

void fault(int error, const char *format, ...) {
  char text[200];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  failure = error;
  message = text;
  if (!me) return;
  snprintf(text, sizeof text, "thread %u,%u,%u of block %u,%u,%u ", me->index.x, me->index.y, me->index.z, block_at.x,
           block_at.y, block_at.z);
  message = text + message;
  me->state = ENDED;
  swapcontext(&me->context, &home);
}

// Threads may write the same bytes to the same place, as TVM's copies by more threads than there are numbers do.
void check_rewrites() {
  std::vector<Rewritten> rewrites = std::move(me->rewrites);
  me->rewrites.clear();
  for (Rewritten &each : rewrites)
    if (*each.at != each.before)
      return fault(FAILED, "changes what thread number %d wrote, without a barrier", each.writer);
}

void wait(State state, int line) {
  check_rewrites();
  me->state = state;
  me->line = line;
  swapcontext(&me->context, &home);
}

// Whether what a thread did then comes before what this thread does now.
bool is_before(unsigned then, int thread, int warp) {
  return thread == int(me->number) || then < last_barrier || (warp == int(me->warp()) && then < last_sync[me->warp()]);
}

void use(Cell &cell, const char *at, bool writes) {
  if (cell.arrives) return fault(FAILED, "%s what an asynchronous copy has not brought yet", writes ? "writes" : "reads");
  bool is_written = cell.written >= block_began, is_read = cell.read >= block_began;
  if (is_written && !is_before(cell.written, cell.writer, cell.writer / WARP)) {
    if (!writes) return fault(FAILED, "reads what thread number %d wrote, without a barrier", cell.writer);
    me->rewrites.push_back({at, *at, cell.writer});
  }
  bool reads_are_before = !is_read || is_before(cell.read, cell.reader, cell.reading_warp);
  if (writes) {
    if (!reads_are_before) return fault(FAILED, "writes what other threads read, without a barrier");
    cell.written = now;
    cell.writer = me->number;
  } else {
    cell.reader = reads_are_before || cell.reader == int(me->number) ? me->number : SEVERAL;
    cell.reading_warp = reads_are_before || cell.reading_warp == int(me->warp()) ? me->warp() : SEVERAL;
    cell.read = now;
  }
}

Cell *cell_of(const char *at) { // null where it is not shared memory
  size_t fixed = kernel->shared_end - kernel->shared_begin;
  if (at >= kernel->shared_begin && at < kernel->shared_end) return &cells[at - kernel->shared_begin];
  if (at >= dynamic && at < dynamic + dynamic_bytes) return &cells[fixed + (at - dynamic)];
  return nullptr;
}

void access(const void *address, unsigned size, bool writes, bool is_aligned = true) {
  const char *at = (const char *)address;
  if (!me || (at >= me->context.uc_stack.ss_sp && at < (char *)me->context.uc_stack.ss_sp + STACK)) return;
  check_rewrites();
  if (is_aligned && uintptr_t(at) % size) return fault(NOT_ALIGNED, "uses %u bytes that are not aligned", size);
  if (Cell *cell = cell_of(at)) {
    if (cell_of(at + size - 1) != cell + size - 1) return fault(ILLEGAL, "uses memory behind shared memory");
    for (unsigned byte = 0; byte < size; ++byte) use(cell[byte], at + byte, writes);
    return;
  }
  for (const Range &each : tensors)
    if (at >= each.begin && at + size <= each.end) return;
  fault(ILLEGAL, "%s outside of all tensors", writes ? "writes" : "reads");
}

void run_thread() {
  kernel->call(kernel->function, arguments);
  check_rewrites();
  me->state = ENDED;
  swapcontext(&me->context, &home);
}

// The lanes that a lane waits for wait too, for the same ones. Lanes that have ended do not count.
bool is_complete(const Thread &lane) {
  for (unsigned at = lane.warp() * WARP; at < std::min<size_t>((lane.warp() + 1) * WARP, threads.size()); ++at) {
    const Thread &other = *threads[at];
    if (!(lane.mask >> at % WARP & 1) || other.state == ENDED) continue;
    if (other.state != IN_WARP || other.mask != lane.mask || other.line != lane.line) return false;
  }
  return true;
}

bool complete_warp(unsigned first) {
  std::vector<Thread *> lanes;
  size_t end = std::min<size_t>(first + WARP, threads.size());
  for (size_t at = first; at < end; ++at) {
    if (threads[at]->state == RUNS) return false;
    if (threads[at]->state == IN_WARP && (threads[at]->mask == 0 || is_complete(*threads[at])))
      lanes.push_back(threads[at].get());
  }
  unsigned active = 0;
  std::map<unsigned, std::vector<char>> given;
  for (Thread *each : lanes) {
    if (each->mask == 0) active |= 1u << each->number % WARP;
    const char *value = (const char *)each->given;
    given[each->number % WARP].assign(value, value + each->size);
  }
  for (Thread *each : lanes) {
    if (each->mask == 0) *(unsigned *)each->taken = active;
    else if (!each->size) last_sync[each->warp()] = ++now;
    else if (given.count(each->from)) memcpy(each->taken, given[each->from].data(), each->size);
    else memset(each->taken, 0xFF, each->size);
    each->state = RUNS;
  }
  return !lanes.empty();
}

bool is_past_barrier() { // false: all threads have ended, or none can go on
  int line = 0;
  unsigned waiting = 0;
  for (auto &each : threads) {
    if (each->state == IN_WARP) return fault(FAILED, "a warp waits in line %d for lanes that do not come", each->line), false;
    if (each->state == ENDED) continue; // a barrier does not wait for them, from compute capability 7.0 on
    if (waiting++ && each->line != line) return fault(FAILED, "barriers in lines %d and %d", line, each->line), false;
    line = each->line;
  }
  for (auto &each : threads)
    if (each->state == AT_BARRIER) each->state = RUNS;
  last_barrier = ++now;
  return waiting > 0;
}

char *stack_of(unsigned number) {
  while (stacks.size() <= number) {
    char *made = (char *)mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(made, 4096, PROT_NONE);
    stacks.push_back(made);
  }
  return stacks[number];
}

void start_threads(unsigned count) {
  threads.clear();
  for (unsigned number = 0; number < count; ++number) {
    auto made = std::make_unique<Thread>();
    made->number = number;
    made->index = {number % extent.x, number / extent.x % extent.y, number / extent.x / extent.y};
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = stack_of(number);
    made->context.uc_stack.ss_size = STACK;
    makecontext(&made->context, run_thread, 0);
    threads.push_back(std::move(made));
  }
}

char order() {
  const char *wanted = getenv("ORDER");
  return wanted ? *wanted : 'f';
}

std::vector<unsigned> ordered(unsigned count) {
  static std::mt19937 random(1);
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order() == 'b') std::reverse(numbers.begin(), numbers.end());
  if (order() == 's') std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

void run_block(Dim at, unsigned count) {
  block_at = at;
  block_began = last_barrier = ++now;
  last_sync.assign(count / WARP + 1, 0);
  char unwritten = order() == 'f' ? 0xFF : order() == 'b' ? 0x7F : 0x11;
  std::fill(kernel->shared_begin, kernel->shared_end, unwritten);
  std::fill(dynamic, dynamic + dynamic_bytes, unwritten);
  start_threads(count);
  do {
    for (bool is_moving = true; is_moving;) {
      for (unsigned number : ordered(count)) {
        me = threads[number].get();
        if (me->state == RUNS) swapcontext(&home, &me->context);
        me = nullptr;
        if (failure) return;
      }
      is_moving = false;
      for (unsigned first = 0; first < count; first += WARP) is_moving |= complete_warp(first);
    }
  } while (is_past_barrier() && !failure);
}

void *in_runtime(const char *name) {
  void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
  return runtime ? dlsym(runtime, name) : nullptr;
}

int run(const Kernel *launched, const Launch &launch, void **given) {
  kernel = launched;
  arguments = given;
  extent = {launch.block[0], launch.block[1], launch.block[2]};
  grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  unsigned count = extent.x * extent.y * extent.z, blocks = grid.x * grid.y * grid.z;
  size_t fixed = launched->shared_end - launched->shared_begin;
  failure = 0;
  if (!count || !blocks || count > MOST_THREADS || std::max(grid.y, grid.z) > 65535 || fixed + launch.shared > MOST_SHARED)
    return fault(INVALID, "a block of %u threads with %zu bytes", count, fixed + launch.shared), failure;
  dynamic_bytes = launch.shared;
  cells.assign(fixed + launch.shared, Cell());
  tensors.clear();
  auto next = (int (*)(int, char **, size_t *))in_runtime("memory_at");
  char *begin;
  size_t size;
  for (int at = 0; next && next(at, &begin, &size); ++at)
    if (size) tensors.push_back({begin, begin + size});
  for (unsigned block : ordered(blocks)) {
    run_block({block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y}, count);
    if (failure) return failure;
  }
  return 0;
}

std::vector<Recorded> captured;
std::map<void *, std::vector<Recorded>> graphs;
} // namespace

extern "C" {
// For kernels
Dim thread_index() { return me->index; }
Dim block_index() { return block_at; }
Dim block_extent() { return extent; }
Dim grid_extent() { return grid; }
unsigned char *dynamic_memory() { return (unsigned char *)dynamic; }
int lane() { return me->number % WARP; }
void barrier(int line) { wait(AT_BARRIER, line); }
void exchange(unsigned mask, int from, const void *given, void *taken, unsigned size, int line) {
  me->mask = mask, me->from = from, me->given = given, me->taken = taken, me->size = size;
  wait(IN_WARP, line);
}
void sync_warp(unsigned mask, int line) { exchange(mask, 0, nullptr, nullptr, 0, line); }
unsigned active_mask(int line) {
  unsigned mask;
  exchange(0, 0, nullptr, &mask, 0, line);
  return mask;
}
void copy_async(void *to, const void *from, unsigned size) {
  access(from, size, false);
  access(to, size, true);
  Cell *cell = cell_of((char *)to);
  if (!cell) return fault(ILLEGAL, "copies asynchronously to memory that is not shared");
  for (unsigned byte = 0; byte < size; ++byte) cell[byte].arrives = true;
  memset(to, 0xFF, size); // NaN until it is waited for
  me->open.push_back({(char *)to, (const char *)from, size});
}
void commit_copies() {
  me->groups.push_back(me->open);
  me->open.clear();
}
void wait_for_copies(unsigned groups_left) {
  for (; me->groups.size() > groups_left; me->groups.pop_front())
    for (Copy &each : me->groups.front()) {
      memcpy(each.to, each.from, each.size);
      for (unsigned byte = 0; byte < each.size; ++byte) cell_of(each.to)[byte].arrives = false;
      access(each.to, each.size, true);
    }
}

// Before each access
#define ACCESS(size)                                                                                                  \
  void __tsan_read##size(void *at) { access(at, size, false); }                                                       \
  void __tsan_write##size(void *at) { access(at, size, true); }                                                       \
  void __tsan_unaligned_read##size(void *at) { access(at, size, false, false); }                                      \
  void __tsan_unaligned_write##size(void *at) { access(at, size, true, false); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void *at, size_t size) { access(at, size, false, false); }
void __tsan_write_range(void *at, size_t size) { access(at, size, true, false); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

// For the runtime: a graph has what was captured since the last one.
void end_of_capture(void *graph) { graphs[graph] = std::move(captured); }
void replay(void *graph) {
  for (Recorded &each : graphs[graph]) {
    std::vector<void *> given;
    for (auto &argument : each.arguments) given.push_back(argument.data());
    if (run(each.kernel, each.launch, given.data())) fprintf(stderr, "replay: %s\n", message.c_str());
  }
}

// Of CUDA's driver
int cuModuleLoadData(void **made, const void *image) {
  const char *elf = (const char *)image;
  uint64_t sections = *(uint64_t *)(elf + 40);
  uint16_t section_size = *(uint16_t *)(elf + 58), count = *(uint16_t *)(elf + 60);
  int file = memfd_create("kernels", 0);
  size_t size = sections + section_size * count;
  if (write(file, image, size) != ssize_t(size)) return INVALID;
  dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD); // kernels find the functions above
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file); // stays open: the loader knows libraries by their paths
  *made = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*made) message = dlerror();
  return *made ? 0 : INVALID;
}
int cuModuleGetFunction(void **function, void *from, const char *name) {
  *function = dlsym(from, (std::string(name) + "_on_cpu").c_str());
  return *function ? 0 : INVALID;
}
int cuLaunchKernelEx(const Launch *launch, const Kernel *launched, void **given, void **) {
  void **stream = (void **)in_runtime("captured_stream");
  if (!stream || !*stream || *stream != launch->stream) return run(launched, *launch, given);
  Recorded made{launched, *launch, {}};
  for (const unsigned *bytes = launched->bytes; *bytes; ++bytes, ++given)
    made.arguments.emplace_back((char *)*given, (char *)*given + *bytes);
  captured.push_back(made);
  return 0;
}
int cuGetErrorName(int error, const char **text) { return *text = message.c_str(), 0; }
int cuGetErrorString(int error, const char **text) { return *text = message.c_str(), 0; }
}

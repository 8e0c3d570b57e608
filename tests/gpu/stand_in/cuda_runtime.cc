// A CUDA runtime without a GPU: two devices whose memory is the host's. It copies and fills at once, its kernels do nothing, and
// keeps of streams what their order is: an event is ready once what its stream was given before is done. Tests hold a stream
// and let it go on. LD_PRELOAD puts it in front of libcudart.so.13, whose other functions end the process
// (runtime.sh adds them).
//
// Model:     a held stream has a shut gate; an event has the gates that its stream had when it was recorded, and hands them
//            on to the streams that wait for it. Where the host waits, all gates in its way are opened: time has passed.
// Threads:   any function from any thread.

#include <driver_types.h>
#include <pthread.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace {

using Error = int;
constexpr Error kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600;
constexpr int kDevices = 2;
constexpr size_t kTotal = size_t{1} << 30;

struct Stream {
  bool blocking = true;
  int device = 0;
  std::set<int> gates;
};

struct Event {
  bool timed = true;
  int64_t number = 0;
  std::set<int> gates;
};

struct State {
  std::set<int> shut;  // gates that nothing passes yet
  int gates = 0;
  int64_t events = 0;
  Stream legacy[kDevices];
  std::set<Stream*> streams;
  std::map<char*, std::pair<size_t, int>> device_memory;
  std::map<char*, size_t> host_memory;
  size_t used[kDevices] = {};
  Error last = kSuccess;
  int devices = kDevices;
  Error count_error = kSuccess;
  int counts_left = -1;           // how often cudaGetDeviceCount works yet; -1: always
  std::set<int> without_kernels;  // devices that no kernel was compiled for
  int64_t on_legacy = 0;
  int64_t host_waits = 0;
};

State& The() {
  static auto* state = new State;
  return *state;
}

// Without Abseil, which this library must not bring into a process.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};
thread_local int current = 0;

// Under the lock. Null and 1 are how callers name the legacy stream of the current device.
Stream& Of(Stream* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2 ? The().legacy[current] : *stream; }
bool Done(const std::set<int>& gates) {
  for (const int gate : gates) {
    if (The().shut.count(gate) != 0) return false;
  }
  return true;
}
void HostWaits(const std::set<int>& gates) {
  ++The().host_waits;
  for (const int gate : gates) The().shut.erase(gate);
}
void Used(Stream* stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2) ++The().on_legacy;
}
Error Fail(Error error) {
  The().last = error;
  return error;
}

}  // namespace

extern "C" {

// --- What tests ask for ---

// From now on what this stream is given waits. Returns the gate, for StandInRelease.
int StandInHold(Stream* stream) {
  const Lock lock;
  const int gate = ++The().gates;
  The().shut.insert(gate);
  Of(stream).gates.insert(gate);
  return gate;
}
void StandInRelease(int gate) {
  const Lock lock;
  The().shut.erase(gate);
}
// Work that the legacy default stream of a device was given.
int64_t StandInLegacyWork() {
  const Lock lock;
  return The().on_legacy;
}
int64_t StandInHostWaits() {
  const Lock lock;
  return The().host_waits;
}
// Whether what this stream is given is in order with the legacy default stream.
bool StandInBlocking(Stream* stream) {
  const Lock lock;
  return Of(stream).blocking;
}
int StandInDeviceOf(Stream* stream) {
  const Lock lock;
  return Of(stream).device;
}
// What cudaGetDeviceCount says from now on.
void StandInCount(int devices, Error error) {
  const Lock lock;
  The().devices = devices;
  The().count_error = error;
}

// After so many times it fails.
void StandInCountTimes(int times) {
  const Lock lock;
  The().counts_left = times;
}
void StandInWithoutKernels(int device) {
  const Lock lock;
  The().without_kernels.insert(device);
}

// --- Devices ---

Error cudaGetDeviceCount(int* count) {
  const Lock lock;
  if (The().counts_left == 0) return Fail(999);
  if (The().counts_left > 0) --The().counts_left;
  *count = The().devices;
  return The().count_error;
}
Error cudaGetDevice(int* device) {
  *device = current;
  return kSuccess;
}
Error cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return Fail(101);
  current = device;
  return kSuccess;
}
Error cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = 1;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxThreadsPerBlock = 1024;
  properties->totalGlobalMem = kTotal;
  return kSuccess;
}
Error cudaDeviceSynchronize() {
  const Lock lock;
  HostWaits(std::set<int>(The().shut));
  return kSuccess;
}
Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return kSuccess;
}
Error cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}
Error cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
Error cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
Error cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned, uint64_t, int* found) {
  *entry = nullptr;
  if (found != nullptr) *found = 1;
  return kInvalidValue;
}
Error cudaGetLastError() {
  const Lock lock;
  const Error last = The().last;
  The().last = kSuccess;
  return last;
}
Error cudaPeekAtLastError() {
  const Lock lock;
  return The().last;
}
const char* cudaGetErrorName(Error) { return "cudaErrorOfTheStandIn"; }
const char* cudaGetErrorString(Error error) {
  return error == kOutOfMemory ? "out of memory"
         : error == 100        ? "no CUDA-capable device is detected"
         : error == 209        ? "no kernel image is available for execution on the device"
                               : "an error of the stand-in";
}

// --- Streams and events ---

Error cudaStreamCreateWithPriority(Stream** stream, unsigned flags, int) {
  const Lock lock;
  *stream = new Stream;
  (*stream)->blocking = flags == 0;
  (*stream)->device = current;
  The().streams.insert(*stream);
  return kSuccess;
}
Error cudaStreamCreateWithFlags(Stream** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
Error cudaStreamDestroy(Stream* stream) {
  const Lock lock;
  The().streams.erase(stream);
  delete stream;
  return kSuccess;
}
Error cudaStreamQuery(Stream* stream) {
  const Lock lock;
  return Done(Of(stream).gates) ? kSuccess : kNotReady;
}
Error cudaStreamSynchronize(Stream* stream) {
  const Lock lock;
  HostWaits(Of(stream).gates);
  return kSuccess;
}
Error cudaStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  const Lock lock;
  Of(stream).gates.insert(event->gates.begin(), event->gates.end());
  return kSuccess;
}
Error cudaStreamIsCapturing(Stream*, int* status) {
  *status = 0;
  return kSuccess;
}
Error cudaStreamGetCaptureInfo(Stream*, int* status, uint64_t* id, ...) {
  *status = 0;
  if (id != nullptr) *id = 0;
  return kSuccess;
}
Error cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

Error cudaEventCreateWithFlags(Event** event, unsigned flags) {
  *event = new Event;
  (*event)->timed = (flags & 2U) == 0;
  return kSuccess;
}
Error cudaEventCreate(Event** event) { return cudaEventCreateWithFlags(event, 0); }
Error cudaEventDestroy(Event* event) {
  delete event;
  return kSuccess;
}
Error cudaEventRecord(Event* event, Stream* stream) {
  const Lock lock;
  Used(stream);
  event->gates = Of(stream).gates;
  event->number = ++The().events;
  return kSuccess;
}
Error cudaEventRecordWithFlags(Event* event, Stream* stream, unsigned) { return cudaEventRecord(event, stream); }
Error cudaEventQuery(Event* event) {
  const Lock lock;
  return Done(event->gates) ? kSuccess : kNotReady;
}
Error cudaEventSynchronize(Event* event) {
  const Lock lock;
  HostWaits(event->gates);
  return kSuccess;
}
// A millisecond from each event to the next.
Error cudaEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
  const Lock lock;
  if (!begin->timed || !end->timed) return Fail(400);
  if (!Done(end->gates)) return Fail(kNotReady);
  *milliseconds = static_cast<float>(end->number - begin->number);
  return kSuccess;
}

// --- Memory ---

Error cudaMalloc(void** address, size_t bytes) {
  const Lock lock;
  if (bytes > kTotal - The().used[current]) return Fail(kOutOfMemory);
  *address = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  The().device_memory[static_cast<char*>(*address)] = {bytes, current};
  The().used[current] += bytes;
  return kSuccess;
}
Error cudaFree(void* address) {
  const Lock lock;
  const auto found = The().device_memory.find(static_cast<char*>(address));
  if (found == The().device_memory.end()) return kSuccess;
  The().used[found->second.second] -= found->second.first;
  The().device_memory.erase(found);
  std::free(address);
  return kSuccess;
}
Error cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock;
  *total = kTotal;
  *free = kTotal - The().used[current];
  return kSuccess;
}
Error cudaHostAlloc(void** address, size_t bytes, unsigned) {
  const Lock lock;
  *address = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  The().host_memory[static_cast<char*>(*address)] = bytes;
  return kSuccess;
}
Error cudaFreeHost(void* address) {
  const Lock lock;
  The().host_memory.erase(static_cast<char*>(address));
  std::free(address);
  return kSuccess;
}

struct Attributes {
  int type;  // 0 unknown, 1 the host's, 2 a device's
  int device;
  void* device_address;
  void* host_address;
};
Error cudaPointerGetAttributes(Attributes* attributes, const void* address) {
  const Lock lock;
  const auto* place = static_cast<const char*>(address);
  *attributes = {0, -1, nullptr, nullptr};
  for (const auto& [begin, bytes] : The().host_memory) {
    if (place >= begin && place < begin + bytes) attributes->type = 1;
  }
  for (const auto& [begin, block] : The().device_memory) {
    if (place >= begin && place < begin + block.first) *attributes = {2, block.second, nullptr, nullptr};
  }
  return kSuccess;
}

Error cudaMemcpyAsync(void* target, const void* source, size_t bytes, int, Stream* stream) {
  const Lock lock;
  Used(stream);
  std::memcpy(target, source, bytes);
  return kSuccess;
}
Error cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t bytes, Stream* stream) {
  return cudaMemcpyAsync(target, source, bytes, 0, stream);
}
Error cudaMemsetAsync(void* target, int value, size_t bytes, Stream* stream) {
  const Lock lock;
  Used(stream);
  std::memset(target, value, bytes);
  return kSuccess;
}

// --- Kernels, which do nothing ---

namespace {
struct Configuration {
  dim3 grid, block;
  size_t shared;
  Stream* stream;
};
thread_local Configuration pushed;
}  // namespace

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, Stream* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
Error __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, Stream** stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return kSuccess;
}
Error __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return kSuccess;
}
Error __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, Stream* stream) {
  const Lock lock;
  Used(stream);
  return The().without_kernels.count(Of(stream).device) == 0 ? kSuccess : Fail(209);
}
Error cudaLaunchKernel(const void*, dim3 grid, dim3 block, void** arguments, size_t shared, Stream* stream) {
  return __cudaLaunchKernel(nullptr, grid, block, arguments, shared, stream);
}

// What LibTorch's are made known by.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

}  // extern "C"

#include "tests/support/stand_in_device.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <c10/core/AutogradState.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock::testing {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// --- Memory ---

// Bits that no address of the host has. Arithmetic on an address keeps them.
constexpr uintptr_t kTag = uintptr_t{1} << 62;

void* DeviceAddress(void* host) {
  return host == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) | kTag);
}
void* HostAddress(const void* address) { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~kTag); }

thread_local c10::DeviceIndex current_device = 0;

// A piece of a device's memory, reported to LibTorch's profilers as a GPU's allocator does.
class Piece {
 public:
  // Keeps `memory`, or what `keeper` keeps.
  Piece(void* memory, size_t bytes, c10::Device device, c10::Storage keeper = {})
      : memory_(memory), bytes_(static_cast<int64_t>(bytes)), device_(device), keeper_(std::move(keeper)) {
    Report(bytes_);
  }
  ~Piece() {
    Report(-bytes_);
    if (!keeper_) std::free(memory_);
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  static c10::DataPtr Give(std::unique_ptr<Piece> piece) {
    Piece* const given = piece.release();
    return {DeviceAddress(given->memory_), given, [](void* old) { delete static_cast<Piece*>(old); }, given->device_};
  }

 private:
  void Report(int64_t change) const { c10::reportMemoryUsageToProfiler(memory_, change, 0, 0, device_); }
  void* const memory_;
  const int64_t bytes_;
  const c10::Device device_;
  const c10::Storage keeper_;
};

class StandInAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    return Piece::Give(std::make_unique<Piece>(memory, bytes, c10::Device(kType, current_device)));
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(HostAddress(target), HostAddress(source), bytes);
  }
};

c10::Allocator* TheAllocator() {
  static auto* allocator = new StandInAllocator;
  return allocator;
}

// Memory of the host that devices reach by themselves: pieces that NewHostTensor() made and somebody still has.
class PinnedMemory {
 public:
  static PinnedMemory& The() {
    static auto* memory = new PinnedMemory;
    return *memory;
  }
  c10::DataPtr Allocate(size_t bytes) {
    void* memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
    absl::MutexLock lock(&mu_);
    pieces_.insert(memory);
    return {memory, memory, &Free, c10::Device(c10::kCPU)};
  }
  bool Has(const void* begin) {
    absl::MutexLock lock(&mu_);
    return pieces_.contains(begin);
  }

 private:
  static void Free(void* memory) {
    {
      absl::MutexLock lock(&The().mu_);
      The().pieces_.erase(memory);
    }
    std::free(memory);
  }
  absl::Mutex mu_;
  std::set<const void*> pieces_ ABSL_GUARDED_BY(mu_);
};

bool IsPinned(const at::Tensor& tensor) { return PinnedMemory::The().Has(tensor.storage().data()); }

// Memory of the host as that of a device, which keeps it from then on.
c10::Storage Adopt(const c10::Storage& host, c10::Device device) {
  c10::DataPtr memory =
      Piece::Give(std::make_unique<Piece>(const_cast<void*>(host.data()), host.nbytes(), device, host));
  return {c10::Storage::use_byte_size_t(), host.nbytes(), std::move(memory), TheAllocator(), /*resizable=*/true};
}

// The memory of a device as memory of the host, for as long as an operator runs.
c10::Storage Lend(const c10::Storage& storage) {
  c10::DataPtr memory(HostAddress(storage.data()), c10::Device(c10::kCPU));
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), c10::GetCPUAllocator(),
          /*resizable=*/true};
}

at::Tensor WithStorage(const at::Tensor& form, c10::Storage storage, c10::DispatchKey key) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), form.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(form.sizes(), form.strides(), form.storage_offset());
  return tensor;
}

at::Tensor OnHost(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() ? WithStorage(tensor, Lend(tensor.storage()), c10::DispatchKey::CPU)
                                              : tensor;
}

// --- Operators ---

// The tensors of one call of an operator, on the host while it runs.
class HostCall {
 public:
  at::Tensor Argument(const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;
    Note(tensor.device());
    lent_.push_back({tensor, OnHost(tensor)});
    return lent_.back().host;
  }

  c10::IValue Argument(c10::IValue value) {
    if (value.isTensor()) return Argument(value.toTensor());
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) tensor = Argument(tensor);
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
        tensors.push_back(one.has_value() ? std::optional(Argument(*one)) : std::nullopt);
      }
      return tensors;
    }
    if (value.isDevice()) {
      Note(value.toDevice().has_index() ? value.toDevice() : c10::Device(kType, current_device));
      return c10::Device(c10::kCPU);
    }
    return value;
  }

  // The argument itself, a view of one, or what the operator has made.
  at::Tensor Result(const at::Tensor& host) {
    if (!host.defined()) return host;
    for (const Lent& lent : lent_) {
      if (host.is_same(lent.host)) return lent.tensor;
      if (host.storage().data() != nullptr && host.storage().data() == lent.host.storage().data()) {
        return at::native::as_strided_tensorimpl(lent.tensor, host.sizes(), host.strides(), host.storage_offset());
      }
    }
    return WithStorage(host, Adopt(host.storage(), *device_), c10::DispatchKey::PrivateUse1);
  }

  c10::IValue Result(c10::IValue value) {
    if (value.isTensor()) return Result(value.toTensor());
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = Result(tensor);
    return tensors;
  }

  // An operator may have given an argument another size.
  void TakeNewSizes() {
    for (const Lent& lent : lent_) {
      c10::TensorImpl* tensor = lent.tensor.unsafeGetTensorImpl();
      if (lent.host.storage().data() != HostAddress(lent.tensor.storage().data())) {
        tensor->set_storage_keep_dtype(Adopt(lent.host.storage(), *device_));
      } else if (lent.host.sizes() == lent.tensor.sizes()) {
        continue;
      }
      tensor->set_sizes_and_strides(lent.host.sizes(), lent.host.strides(), lent.host.storage_offset());
    }
  }

 private:
  struct Lent {
    at::Tensor tensor;
    at::Tensor host;
  };

  void Note(c10::Device device) {
    if (!device_.has_value()) device_ = device;
    TORCH_CHECK(device == *device_, "Expected all tensors to be on the same device, but found at least two devices, ",
                *device_, " and ", device, "!");
  }

  std::optional<c10::Device> device_;
  std::vector<Lent> lent_;
};

std::atomic<int64_t> host_waits = 0;
std::atomic<int64_t> host_copy_bytes = 0;
std::atomic<int64_t> device_copy_bytes = 0;

// Whether a GPU's kernel for an operator hands the host numbers of the device: sizes of results, mostly.
bool MakesTheHostWait(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  static const auto* waiting = new std::set<std::string>{"aten::_local_scalar_dense",
                                                         "aten::masked_select",
                                                         "aten::nonzero",
                                                         "aten::equal",
                                                         "aten::bincount",
                                                         "aten::_unique2",
                                                         "aten::unique_dim",
                                                         "aten::unique_consecutive"};
  const std::string& name = op.schema().name();
  if (waiting->contains(name)) return true;
  if (name == "aten::repeat_interleave") return true;  // of counts on the device
  if (name != "aten::index" && name != "aten::index_put_" && name != "aten::_index_put_impl_") return false;
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (const std::optional<at::Tensor>& index : (stack.end() - arguments + 1)->toOptionalTensorVector()) {
    if (!index.has_value() || !index->defined()) continue;
    if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) return true;
  }
  return false;
}

void RunOnHost(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (MakesTheHostWait(op, *stack)) ++host_waits;
  HostCall call;
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto value = stack->end() - arguments; value != stack->end(); ++value) *value = call.Argument(std::move(*value));
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  for (auto value = stack->end() - results; value != stack->end(); ++value) *value = call.Result(std::move(*value));
  call.TakeNewSizes();
}

at::Tensor Empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard current(device);
  return at::detail::empty_generic(size, TheAllocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor EmptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                        std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard current(device);
  return at::detail::empty_strided_generic(
      size, stride, TheAllocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat));
}

// The one operator for which tensors may stand on two devices.
at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (source.is_cpu() != target.is_cpu()) {
    if (!non_blocking || !IsPinned(source.is_cpu() ? source : target)) ++host_waits;
  }
  if (source.is_cpu() != target.is_cpu()) {
    host_copy_bytes += static_cast<int64_t>(source.nbytes());
  } else if (source.device() != target.device()) {
    device_copy_bytes += static_cast<int64_t>(source.nbytes());
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  OnHost(target).copy_(OnHost(source));
  return target;
}

// As on CUDA: a tensor of the host may take the content of one of the device.
bool MayTakeContent(const at::Tensor&, const at::Tensor&) { return true; }

// For devices that LibTorch does not know it leaves convolutions to their makers.
at::Tensor Convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const at::AutoDispatchBelowADInplaceOrView below;
  HostCall call;
  const at::Tensor host_input = call.Argument(input);
  const at::Tensor host_weight = call.Argument(weight);
  const at::Tensor host_bias = call.Argument(bias.value_or(at::Tensor()));
  return call.Result(at::convolution(host_input, host_weight, host_bias, stride, padding, dilation, transposed,
                                     output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> ConvolutionBackward(const at::Tensor& gradient, const at::Tensor& input,
                                                                   const at::Tensor& weight, at::IntArrayRef stride,
                                                                   at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                   bool transposed, at::IntArrayRef output_padding,
                                                                   int64_t groups, std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView below;
  HostCall call;
  const at::Tensor host_gradient = call.Argument(gradient);
  const at::Tensor host_input = call.Argument(input);
  const at::Tensor host_weight = call.Argument(weight);
  const std::vector<int64_t> bias = {gradient.size(1)};
  const auto [to_input, to_weight, to_bias] =
      at::convolution_backward(host_gradient, host_input, host_weight, bias, stride, padding, dilation, transposed,
                               output_padding, groups, wanted);
  return {call.Result(to_input), call.Result(to_weight), call.Result(to_bias)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&RunOnHost>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &Empty);
  library.impl("empty_strided", &EmptyStrided);
  library.impl("_copy_from", &CopyFrom);
  library.impl("_has_compatible_shallow_copy_type", &MayTakeContent);
  library.impl("convolution_overrideable", &Convolution);
  library.impl("convolution_backward_overrideable", &ConvolutionBackward);
}

// --- Devices ---

// There is one stream for LibTorch: what it orders by itself is in order.
class StandInGuard : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kStandInDevices, "there is no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kStandInDevices; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, StandInGuard);

struct StandInHooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::The().Has(data); }
};

[[maybe_unused]] const bool registered = [] {
  c10::register_privateuse1_backend("stand_in");
  at::RegisterPrivateUse1HooksInterface(new StandInHooks);
  c10::SetAllocator(kType, TheAllocator());
  return true;
}();

class BackwardHere {
 public:
  BackwardHere() : before_(State().get_multithreading_enabled()) { State().set_multithreading_enabled(false); }
  ~BackwardHere() { State().set_multithreading_enabled(before_); }
  BackwardHere(const BackwardHere&) = delete;
  BackwardHere& operator=(const BackwardHere&) = delete;

 private:
  static c10::AutogradState& State() { return c10::AutogradState::get_tls_state(); }
  const bool before_;
};

}  // namespace

int64_t HostWaits() { return host_waits; }
int64_t HostCopyBytes() { return host_copy_bytes; }
int64_t DeviceCopyBytes() { return device_copy_bytes; }

StandInStreams::StandInStreams(int index, StreamLog* log)
    : FakeStreams("cuda" + std::to_string(index), log), device_(kType, static_cast<c10::DeviceIndex>(index)) {}

void StandInStreams::RunOn(StreamKind stream, const std::function<void()>& body) {
  const c10::DeviceGuard current(device_);
  const BackwardHere backward_here;
  FakeStreams::RunOn(stream, body);
}

at::Tensor StandInStreams::NewHostTensor(const at::Tensor& like) {
  at::globalContext().lazyInitDevice(kType);  // before, nothing counts as pinned
  const at::Tensor form = FakeStreams::NewHostTensor(like);
  const size_t bytes = form.storage().nbytes();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, PinnedMemory::The().Allocate(bytes),
                       c10::GetCPUAllocator(), /*resizable=*/false);
  return WithStorage(form, std::move(storage), c10::DispatchKey::CPU);
}

}  // namespace penstock::testing

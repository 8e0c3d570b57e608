// Room for results: from devices to the host, from the host to files, the least recently used first.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/thread.h"
#include "tests/contract/handles/handle_fixture.h"
#include "tests/support/stand_in_device.h"
#include "tests/support/temporary_folder.h"

namespace penstock::testing {
namespace {

constexpr int64_t kElements = int64_t{64} << 10;
constexpr int64_t kValueBytes = 4 * kElements;
constexpr int kFit = 4;    // values of one caller on the host
constexpr int kThere = 2;  // on a device
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

at::Tensor Numbered(int number) { return at::arange(kElements, at::kFloat).add_(static_cast<float>(number)); }

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);

HandleStore::Options OptionsWith(std::unique_ptr<SpillFolder> spill, std::map<std::string, int64_t> device_bytes = {},
                                 int64_t bytes = 2 * kFit * kValueBytes) {
  HandleStore::Options options;
  options.budget.bytes = bytes;
  options.budget.bytes_per_owner = bytes / 2;
  options.device_bytes = std::move(device_bytes);
  options.spill = std::move(spill);
  return options;
}

std::unique_ptr<SpillFolder> OpenIn(const std::string& folder, int64_t limit = kNoLimit,
                                    ServerMetrics* metrics = nullptr) {
  absl::StatusOr<std::unique_ptr<SpillFolder>> spill = SpillFolder::Open(folder, limit, "--handle-spill-root", metrics);
  EXPECT_TRUE(spill.ok()) << spill.status();
  return spill.ok() ? *std::move(spill) : nullptr;
}

// What a test puts into a store, and asks of it.
class RoomTest : public HandleFixture {
 protected:
  explicit RoomTest(HandleStore::Options options) : HandleFixture(std::move(options)) {}

  HandleName Put(int number, const std::string& owner = "ann") { return PutTensor(Numbered(number), owner); }
  HandleName PutTensor(const at::Tensor& tensor, const std::string& owner = "ann") {
    const absl::StatusOr<HandleName> name = store_->Reserve({.owner = owner, .pipeline = "gpt", .method = "Infer"});
    EXPECT_TRUE(name.ok()) << name.status();
    if (!name.ok()) return {};
    store_->Fulfil(name->id, NamedTensors{{"y", tensor}});
    return *name;
  }
  std::shared_ptr<const HeldValues> Values(const HandleName& name, const std::string& owner = "ann") {
    const absl::StatusOr<HandlePin> pin = store_->Pin(owner, name);
    EXPECT_TRUE(pin.ok()) << pin.status();
    if (!pin.ok()) return nullptr;
    absl::StatusOr<std::shared_ptr<const HeldValues>> held = pin->values();
    EXPECT_TRUE(held.ok()) << held.status();
    return held.ok() ? *held : nullptr;
  }
  at::Tensor TensorOf(const HandleName& name, const std::string& owner = "ann") {
    const auto held = Values(name, owner);
    return held == nullptr ? at::Tensor() : held->tensors[0].tensor;
  }
  bool InFile(const HandleName& name, const std::string& owner = "ann") { return Values(name, owner)->in_file; }
  std::string ErrorOf(const HandleName& name, const std::string& owner = "ann") {
    return ReasonOf(store_->Get(owner, name)->error);
  }
  double Gauge(HandleTier tier) { return metrics_.handle_bytes[tier].value(); }
};

// What has to be there before the store.
struct Folder {
  TemporaryFolder folder;
  ServerMetrics folder_metrics;
};

class FileRoomTest : protected Folder, public RoomTest {
 protected:
  explicit FileRoomTest(int64_t limit = kNoLimit)
      : RoomTest(OptionsWith(OpenIn(folder.path(), limit, &folder_metrics))) {}

  double FileBytes() { return folder_metrics.handle_bytes[HandleTier::kFile].value(); }
};

TEST_F(FileRoomTest, WhatDoesNotFitGoesToFilesAndComesBackBitForBit) {
  std::vector<HandleName> names;
  for (int i = 0; i < 4 * kFit; ++i) names.push_back(Put(i));
  int in_files = 0;
  for (int i = 0; i < 4 * kFit; ++i) {
    EXPECT_EQ(StateOf(names[i]), HandleState::kReady) << i;
    EXPECT_EQ(store_->Get("ann", names[i])->bytes, kValueBytes);
    in_files += InFile(names[i]) ? 1 : 0;
    EXPECT_TRUE(at::equal(TensorOf(names[i]), Numbered(i))) << i;
  }
  EXPECT_EQ(in_files, 3 * kFit);
  EXPECT_EQ(store_->TotalCounts().bytes, kFit * kValueBytes);
  EXPECT_EQ(FileBytes(), 3 * kFit * kValueBytes);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "files without names";
  for (const HandleName& name : names) ASSERT_TRUE(store_->Release("ann", name).ok());
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
  EXPECT_EQ(FileBytes(), 0);
}

TEST_F(FileRoomTest, TheLeastRecentlyUsedGoesFirst) {
  std::vector<HandleName> names;
  for (int i = 0; i < kFit; ++i) names.push_back(Put(i));
  (void)Values(names[0]);
  Put(kFit);
  EXPECT_TRUE(InFile(names[1]));
  for (const int i : {0, 2, 3}) EXPECT_FALSE(InFile(names[i])) << i;
}

TEST_F(FileRoomTest, WhatIsPinnedStays) {
  std::vector<HandleName> names;
  std::vector<HandlePin> pins;
  for (int i = 0; i < kFit; ++i) {
    names.push_back(Put(i));
    pins.push_back(*store_->Pin("ann", names[i]));
  }
  const HandleName none = Put(kFit);
  EXPECT_EQ(StateOf(none), HandleState::kFailed);
  EXPECT_EQ(ErrorOf(none), "HANDLE_BUDGET");
  pins.erase(pins.begin() + 2);
  EXPECT_EQ(StateOf(Put(kFit)), HandleState::kReady);
  for (int i = 0; i < kFit; ++i) EXPECT_EQ(InFile(names[i]), i == 2) << i;
}

TEST_F(FileRoomTest, AReservationMakesRoomToo) {
  std::vector<HandleName> names;
  for (int i = 0; i < kFit; ++i) names.push_back(Put(i));
  const auto reserved = store_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = 2 * kValueBytes});
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_TRUE(store_->Hold(*reserved, 3 * kValueBytes).ok());
  for (int i = 0; i < kFit; ++i) EXPECT_EQ(InFile(names[i]), i < 3) << i;
  EXPECT_EQ(ReasonOf(store_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = 2 * kFit * kValueBytes}).status()),
            "HANDLE_BUDGET");
}

TEST_F(FileRoomTest, AnEndedHandleAsksForNoRoom) {
  const HandleName full = *store_->Reserve({.owner = "ann", .pipeline = "gpt"});
  const HandleName other = Put(1);
  store_->Fail(full.id, Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no memory"));
  EXPECT_EQ(ReasonOf(store_->Hold(full, kValueBytes)), "HOST_MEMORY");
  EXPECT_FALSE(InFile(other));
}

TEST_F(FileRoomTest, OneCallersBoundIsNotPaidByAnother) {
  std::vector<HandleName> of_bob;
  for (int i = 0; i < kFit; ++i) of_bob.push_back(Put(i, "bob"));
  std::vector<HandleName> of_ann;
  for (int i = 0; i < 2 * kFit; ++i) of_ann.push_back(Put(i));
  for (const HandleName& name : of_bob) EXPECT_FALSE(InFile(name, "bob"));
  EXPECT_TRUE(InFile(of_ann[0]));
}

TEST_F(FileRoomTest, WhoFillsItsBoundWithWhatIsGonePushesNobodyOut) {
  const HandleName of_bob = Put(0, "bob");
  std::vector<HandlePin> pins;
  for (int i = 0; i < kFit; ++i) {
    const HandleName name = Put(i);
    pins.push_back(*store_->Pin("ann", name));
    ASSERT_TRUE(store_->Release("ann", name).ok());
  }
  EXPECT_EQ(ErrorOf(Put(kFit)), "HANDLE_BUDGET");
  EXPECT_FALSE(InFile(of_bob, "bob"));
}

TEST_F(FileRoomTest, ForWhatNeverFitsNobodyMoves) {
  const HandleName name = Put(0);
  EXPECT_EQ(ReasonOf(store_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = (kFit + 1) * kValueBytes}).status()),
            "HANDLE_BUDGET");
  EXPECT_FALSE(InFile(name));
}

TEST_F(FileRoomTest, WhatSomebodyElseUsesStays) {
  const HandleName used = Put(0);
  const at::Tensor rows = TensorOf(used).narrow(0, 0, 10);  // as a graph keeps it
  const HandleName other = Put(1);
  for (int i = 0; i < kFit - 1; ++i) Put(i);
  EXPECT_FALSE(InFile(used));
  EXPECT_TRUE(InFile(other));
}

TEST_F(FileRoomTest, TheBoundOfAllTakesTheOldestOfAll) {
  std::vector<HandleName> of_bob;
  for (int i = 0; i < kFit; ++i) of_bob.push_back(Put(i, "bob"));
  for (int i = 0; i < kFit; ++i) Put(i, "ann");
  Put(0, "cid");
  EXPECT_TRUE(InFile(of_bob[0], "bob"));
  EXPECT_FALSE(InFile(of_bob[kFit - 1], "bob"));
}

TEST_F(FileRoomTest, SharesGoTogetherAndAreChargedOnce) {
  const HandleName mine = Put(0);
  const HandleName share = store_->Share("ann", mine, "bob", absl::ZeroDuration())->name;
  {
    const absl::StatusOr<HandlePin> pin = store_->Pin("bob", share);
    for (int i = 1; i < kFit; ++i) Put(i);
    Put(kFit);
    EXPECT_FALSE((*pin->values())->in_file) << "a share of it is pinned";
  }
  for (int i = 0; i < kFit; ++i) Put(i);
  const auto held = Values(mine);
  EXPECT_TRUE(held->in_file);
  EXPECT_EQ(Values(share, "bob"), held) << "one copy";
  ASSERT_TRUE(store_->Release("ann", mine).ok());
  EXPECT_TRUE(at::equal(TensorOf(share, "bob"), Numbered(0)));
}

TEST_F(FileRoomTest, SmallValuesStay) {
  std::vector<HandleName> names;
  const int64_t rows = 1024;
  const int fit = static_cast<int>(kFit * kValueBytes / (4 * rows));
  for (int i = 0; i < fit; ++i) names.push_back(PutTensor(at::arange(rows, at::kFloat)));
  EXPECT_EQ(ErrorOf(PutTensor(at::arange(rows, at::kFloat))), "HANDLE_BUDGET");
  EXPECT_EQ(FileBytes(), 0);
}

TEST_F(FileRoomTest, LayoutsAndValuesInsideStayWhatTheyAre) {
  const at::Tensor turned = Numbered(3).view({256, 256}).t().clone();
  at::Tensor wide;
  {
    const c10::InferenceMode without_a_base;
    wide = at::arange(4, at::kFloat).view({4, 1}).expand({4, kElements / 4});
  }
  const at::Tensor inside = Numbered(5);
  NamedValues values;
  values.push_back({"turned", Value(turned)});
  values.push_back({"wide", Value(wide)});
  values.push_back({"empty", Value(at::arange(0, at::kLong))});
  values.push_back({"more", Value::Dict({{"a", Value(inside)}, {"again", Value(inside)}, {"text", Value("t")}})});
  const HandleName name = *store_->Reserve({.owner = "ann", .pipeline = "gpt"});
  store_->Fulfil(name.id, *HoldValues(values));
  const std::vector<TensorHeader> headers = store_->Get("ann", name)->tensors;
  for (int i = 0; i < kFit; ++i) Put(i);
  const auto held = Values(name);
  ASSERT_TRUE(held->in_file);
  EXPECT_TRUE(at::equal(*held->FindTensor("turned"), turned));
  EXPECT_EQ(held->FindTensor("turned")->strides(), turned.strides());
  EXPECT_TRUE(at::equal(*held->FindTensor("wide"), wide));
  EXPECT_EQ(held->FindTensor("empty")->numel(), 0);
  const ValueDict& more = *held->FindValue("more")->dict();
  EXPECT_TRUE(at::equal(*more[0].second.tensor(), inside));
  EXPECT_TRUE(more[1].second.tensor()->is_same(*more[0].second.tensor()));
  EXPECT_TRUE(more[0].second.tensor()->is_same(*held->FindTensor("more.0")));
  EXPECT_EQ(store_->Get("ann", name)->tensors, headers);
}

TEST_F(FileRoomTest, WhatAReaderWritesIsItsOwn) {
  const HandleName name = Put(0);
  for (int i = 0; i < kFit; ++i) Put(i);
  ASSERT_TRUE(InFile(name));
  const HandlePin pin = *store_->Pin("ann", name);
  const at::Tensor tensor = (*pin.values())->tensors[0].tensor;
  tensor.add_(1);  // no layer may do so; one that does ends no process
  EXPECT_FALSE(at::equal(tensor, Numbered(0)));
}

TEST_F(FileRoomTest, ManyAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kValues = 40;
  std::list<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back("room", [this, t] {
      const std::string owner = "owner-" + std::to_string(t);
      std::vector<HandleName> names;
      for (int i = 0; i < kValues; ++i) {
        names.push_back(Put(100 * t + i, owner));
        const int look = (7 * i) % (i + 1);
        EXPECT_TRUE(at::equal(TensorOf(names[look], owner), Numbered(100 * t + look)));
      }
      for (int i = 0; i < kValues; ++i) {
        EXPECT_TRUE(at::equal(TensorOf(names[i], owner), Numbered(100 * t + i))) << i;
        ASSERT_TRUE(store_->Release(owner, names[i]).ok());
      }
    });
  }
  threads.clear();
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
  EXPECT_EQ(FileBytes(), 0);
}

class SmallFolderTest : public FileRoomTest {
 protected:
  SmallFolderTest() : FileRoomTest(2 * kValueBytes) {}
};

TEST_F(SmallFolderTest, AFullFolderIsARefusal) {
  std::vector<HandleName> names;
  for (int i = 0; i < kFit + 2; ++i) names.push_back(Put(i));
  EXPECT_EQ(ErrorOf(Put(9)), "HANDLE_BUDGET");
  for (int i = 0; i < kFit + 2; ++i) EXPECT_TRUE(at::equal(TensorOf(names[i]), Numbered(i))) << i;
  ASSERT_TRUE(store_->Release("ann", names[0]).ok());
  EXPECT_EQ(StateOf(Put(10)), HandleState::kReady);
}

TEST(SpillFolderTest, AFolderThatIsNoneIsNamed) {
  const absl::Status refused = SpillFolder::Open("/nowhere/at/all", 1, "--handle-spill-root", nullptr).status();
  EXPECT_EQ(ReasonOf(refused), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(refused)["field"], "--handle-spill-root");
  EXPECT_EQ(ValuesOf(refused)["value"], "/nowhere/at/all");
}

TEST(SpillFolderTest, ValuesOutliveIt) {
  const TemporaryFolder folder;
  std::unique_ptr<SpillFolder> spill = OpenIn(folder.path());
  const HeldValues there = *spill->Put(HeldValues(NamedTensors{{"y", Numbered(1)}, {"z", Numbered(2)}}));
  EXPECT_EQ(spill->files(), 1);
  spill.reset();
  EXPECT_TRUE(at::equal(there.tensors[0].tensor, Numbered(1)));
  EXPECT_TRUE(at::equal(there.tensors[1].tensor, Numbered(2)));
}

// --- Devices.

class DeviceRoomTest : public RoomTest {
 protected:
  explicit DeviceRoomTest(std::unique_ptr<SpillFolder> spill = nullptr, int64_t bytes = 2 * kFit * kValueBytes)
      : RoomTest(OptionsWith(std::move(spill), {{kDevice.str(), kThere * kValueBytes}}, bytes)) {}

  HandleName PutThere(int number, const std::string& owner = "ann") {
    return PutTensor(Numbered(number).to(kDevice), owner);
  }
  bool IsThere(const HandleName& name) { return TensorOf(name).device() == kDevice; }
  at::Tensor OnHost(const HandleName& name) { return TensorOf(name).cpu(); }
};

TEST_F(DeviceRoomTest, ValuesStayWhereTheyAreUntilOthersNeedTheRoom) {
  std::vector<HandleName> names;
  for (int i = 0; i < kThere; ++i) names.push_back(PutThere(i));
  const int64_t crossed = HostCopyBytes();
  for (const HandleName& name : names) EXPECT_TRUE(IsThere(name));
  EXPECT_EQ(store_->TotalCounts().bytes, 0) << "nothing on the host";
  EXPECT_EQ(Gauge(HandleTier::kDevice), kThere * kValueBytes);
  EXPECT_EQ(HostCopyBytes(), crossed);
  names.push_back(PutThere(kThere));
  EXPECT_FALSE(IsThere(names[0]));
  for (int i = 1; i <= kThere; ++i) EXPECT_TRUE(IsThere(names[i])) << i;
  for (int i = 0; i <= kThere; ++i) EXPECT_TRUE(at::equal(OnHost(names[i]), Numbered(i))) << i;
  EXPECT_EQ(store_->TotalCounts().bytes, kValueBytes);
  EXPECT_EQ(Gauge(HandleTier::kDevice), kThere * kValueBytes);
  for (const HandleName& name : names) ASSERT_TRUE(store_->Release("ann", name).ok());
  EXPECT_EQ(Gauge(HandleTier::kDevice), 0);
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
}

TEST_F(DeviceRoomTest, WhatCanNotFitOrDisplaceGoesToTheHostItself) {
  const HandleName small = PutThere(0);
  const HandleName large = PutTensor(at::arange((kThere + 1) * kElements, at::kFloat).to(kDevice));
  EXPECT_FALSE(IsThere(large));
  EXPECT_TRUE(IsThere(small)) << "its end would not make enough room";
  for (const HandleName& name : {small, large}) ASSERT_TRUE(store_->Release("ann", name).ok());
  std::vector<HandlePin> pins;
  for (int i = 0; i < kThere; ++i) pins.push_back(*store_->Pin("ann", PutThere(i)));
  const HandleName next = PutThere(kThere);
  EXPECT_EQ(StateOf(next), HandleState::kReady);
  EXPECT_FALSE(IsThere(next));
}

TEST_F(DeviceRoomTest, AResultOfTwoDevicesCountsOnEach) {
  const c10::Device other(c10::DeviceType::PrivateUse1, 1);
  const absl::StatusOr<HandleName> name = store_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "Infer"});
  ASSERT_TRUE(name.ok()) << name.status();
  const NamedTensors large = {{"y", Numbered(0).to(kDevice)},
                              {"z", at::arange((kThere + 1) * kElements, at::kFloat).to(other)}};
  store_->Fulfil(name->id, large);
  EXPECT_TRUE(IsThere(*name)) << "the first device has room, and the other one has no bound";
  std::vector<HandleName> names;
  for (int i = 1; i < kThere; ++i) names.push_back(PutThere(i));
  EXPECT_TRUE(IsThere(*name));
  for (const HandleName& one : names) EXPECT_TRUE(IsThere(one));
  names.push_back(PutThere(kThere));
  EXPECT_FALSE(IsThere(*name)) << "the least recently used makes room";
}

TEST_F(DeviceRoomTest, WhereTheHostIsFullTooTheNewOneFails) {
  for (int i = 0; i < kFit; ++i) Put(i);
  std::vector<HandleName> names;
  for (int i = 0; i < kThere; ++i) names.push_back(PutThere(i));
  EXPECT_EQ(ErrorOf(PutThere(kThere)), "HANDLE_BUDGET");
  for (int i = 0; i < kThere; ++i) EXPECT_TRUE(IsThere(names[i])) << i;
}

TEST_F(DeviceRoomTest, WhereTheOldestCanNotGoTheNextOneDoes) {
  for (int i = 0; i < kFit; ++i) Put(i, "bob");
  const HandleName of_bob = PutThere(0, "bob");
  std::vector<HandleName> names;
  for (int i = 0; i < kThere; ++i) names.push_back(PutThere(i));
  EXPECT_EQ(TensorOf(of_bob, "bob").device(), kDevice) << "the host has no room for it";
  EXPECT_FALSE(IsThere(names[0]));
  EXPECT_TRUE(IsThere(names[kThere - 1]));
}

TEST_F(DeviceRoomTest, AForwardsInputStaysWhereItsGraphKeepsIt) {
  const HandleName used = PutThere(0);
  const at::Tensor kept = TensorOf(used).narrow(0, 0, 10);
  const HandleName other = PutThere(1);
  PutThere(2);
  EXPECT_TRUE(IsThere(used));
  EXPECT_FALSE(IsThere(other));
}

TEST_F(DeviceRoomTest, APinnedValueCountsUntilItIsUnpinned) {
  const HandleName name = PutThere(0);
  {
    const HandlePin pin = *store_->Pin("ann", name);
    ASSERT_TRUE(store_->Release("ann", name).ok());
    EXPECT_EQ(Gauge(HandleTier::kDevice), kValueBytes);
  }
  EXPECT_EQ(Gauge(HandleTier::kDevice), 0);
}

class DeviceAndFileRoomTest : protected Folder, public DeviceRoomTest {
 protected:
  DeviceAndFileRoomTest() : DeviceRoomTest(OpenIn(folder.path())) {}
};

TEST_F(DeviceAndFileRoomTest, FromTheDeviceToTheHostToFiles) {
  std::vector<HandleName> names;
  for (int i = 0; i < 4 * kFit; ++i) names.push_back(PutThere(i));
  int there = 0;
  int in_files = 0;
  for (int i = 0; i < 4 * kFit; ++i) {
    ASSERT_EQ(StateOf(names[i]), HandleState::kReady) << i << store_->Get("ann", names[i])->error;
    EXPECT_EQ(IsThere(names[i]), i >= 4 * kFit - kThere) << i << ": the last ones";
    there += IsThere(names[i]) ? 1 : 0;
    in_files += InFile(names[i]) ? 1 : 0;
    EXPECT_TRUE(at::equal(OnHost(names[i]), Numbered(i))) << i;
  }
  EXPECT_EQ(there, kThere);
  EXPECT_EQ(in_files, 4 * kFit - kThere - kFit);
}

}  // namespace
}  // namespace penstock::testing

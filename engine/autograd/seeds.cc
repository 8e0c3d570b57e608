#include "engine/autograd/seeds.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <initializer_list>

namespace penstock {
namespace {

// Tells the uses of randomness apart, whatever the other words of a key are.
constexpr uint64_t kDrawKey = 0x647261772d6b6579;     // "draw-key"
constexpr uint64_t kInitialKey = 0x696e6974696c6b79;  // "initilky"

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio

// A permutation of 64 bits in which every bit of the word moves about half of the result: the finalizer of SplitMix64.
uint64_t Mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

uint64_t HashOf(std::initializer_list<uint64_t> key) {
  uint64_t hash = 0;
  for (uint64_t word : key) hash = Mix((hash ^ Mix(word + kGolden)) + kGolden);
  return hash;
}

// A generator for the hash of a key of several words.
//
// The generator's own seeding keeps 32 bits of a seed, in which the keys of a long training collide. So its whole state
// is written instead, from a SplitMix64 sequence that starts at the hash of the key.
at::Generator FromHash(uint64_t hash) {
  at::mt19937_data_pod data;
  data.seed_ = hash;
  data.seeded_ = true;
  data.left_ = 1;  // the first draw renews the whole state
  data.next_ = 0;
  uint64_t position = hash;
  for (uint32_t& word : data.state_) word = static_cast<uint32_t>(Mix(position += kGolden) >> 32);
  data.state_[0] |= 0x80000000u;  // an all-zero state would stay so

  at::mt19937 engine;
  engine.set_data(data);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(hash);
  generator.get<at::CPUGeneratorImpl>()->set_engine(engine);
  return generator;
}

// A counter is all its state, so that the hash is a seed. Nobody else knows it yet: it needs no lock.
at::Generator FromHashOnGpu(uint64_t hash, c10::Device device) {
  at::Generator generator = at::globalContext().getAcceleratorHooksInterface(at::kCUDA).getNewGenerator(device.index());
  generator.set_current_seed(hash);
  return generator;
}

}  // namespace

Draw KeyedRandom::NextFor(c10::Device device) {
  const uint64_t hash =
      HashOf({kDrawKey, seed_, static_cast<uint64_t>(step_.value()), static_cast<uint64_t>(micro_batch_.value()),
              static_cast<uint64_t>(layer_.value()), draw_++});
  if (device.is_cuda()) return {FromHashOnGpu(hash, device), device};
  return {FromHash(hash), c10::kCPU};
}

at::Generator InitialGenerator(uint64_t seed, LayerIndex layer) {
  return FromHash(HashOf({kInitialKey, seed, static_cast<uint64_t>(layer.value())}));
}

}  // namespace penstock

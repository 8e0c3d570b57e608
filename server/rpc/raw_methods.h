#pragma once

// The base of a service that takes and gives the bytes of its messages.

namespace penstock {

namespace raw_methods {

template <typename Base, template <typename> class... Methods>
struct Wrapped {
  using Type = Base;
};

template <typename Base, template <typename> class First, template <typename> class... Rest>
struct Wrapped<Base, First, Rest...> {
  using Type = First<typename Wrapped<Base, Rest...>::Type>;
};

}  // namespace raw_methods

// A generated service with the raw callback form of each of the methods:
// WithRawMethods<S::Service, S::WithRawCallbackMethod_A, S::WithRawCallbackMethod_B>.
template <typename Base, template <typename> class... Methods>
using WithRawMethods = typename raw_methods::Wrapped<Base, Methods...>::Type;

}  // namespace penstock

#include "server/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace penstock {
namespace {

// A socket in the abstract namespace, as a service manager may have it.
class Manager {
 public:
  Manager() : name_("@penstock-test-" + std::to_string(getpid())) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data() + 1, name_.size() - 1);
    descriptor_ = socket(AF_UNIX, SOCK_DGRAM, 0);
    bound_ = bind(descriptor_, reinterpret_cast<sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size())) == 0;
  }
  ~Manager() { close(descriptor_); }

  bool bound() const { return bound_; }
  const std::string& name() const { return name_; }
  // The next message, or "" if none waits.
  std::string Next() {
    char bytes[256];
    const ssize_t size = recv(descriptor_, bytes, sizeof(bytes), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(bytes, static_cast<size_t>(size));
  }

 private:
  const std::string name_;
  int descriptor_ = -1;
  bool bound_ = false;
};

TEST(ServiceManagerTest, WordsArrive) {
  Manager manager;
  ASSERT_TRUE(manager.bound());
  ServiceManager::FromEnvironment({{"NOTIFY_SOCKET", manager.name()}}, 7).Tell("READY=1\nSTATUS=x");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=x");
  EXPECT_EQ(manager.Next(), "");
}

TEST(ServiceManagerTest, TheWatchdogIsFedAtHalfItsTimeByTheProcessItIsFor) {
  const auto every = [](std::map<std::string, std::string> variables) {
    return ServiceManager::FromEnvironment(variables, 7).feed_every();
  };
  EXPECT_EQ(every({{"NOTIFY_SOCKET", "/s"}, {"WATCHDOG_USEC", "3000000"}}), absl::Milliseconds(1500));
  EXPECT_EQ(every({{"NOTIFY_SOCKET", "/s"}, {"WATCHDOG_USEC", "3000000"}, {"WATCHDOG_PID", "7"}}),
            absl::Milliseconds(1500));
  for (const auto& variables : std::vector<std::map<std::string, std::string>>{
           {},
           {{"NOTIFY_SOCKET", "/s"}},
           {{"WATCHDOG_USEC", "3000000"}},
           {{"NOTIFY_SOCKET", "/s"}, {"WATCHDOG_USEC", "3000000"}, {"WATCHDOG_PID", "8"}},
           {{"NOTIFY_SOCKET", "/s"}, {"WATCHDOG_USEC", "-1"}},
           {{"NOTIFY_SOCKET", "/s"}, {"WATCHDOG_USEC", "soon"}},
           {{"NOTIFY_SOCKET", "vsock:2:1"}, {"WATCHDOG_USEC", "3000000"}}}) {
    EXPECT_EQ(every(variables), absl::ZeroDuration());
  }
}

TEST(ServiceManagerTest, NobodyListensAndNothingHappens) {
  for (const char* address : {"", "/nowhere/notify", "@penstock-nobody-is-here", "relative"}) {
    ServiceManager::FromEnvironment({{"NOTIFY_SOCKET", address}}, 7).Tell("READY=1");
  }
  ServiceManager::FromEnvironment({{"NOTIFY_SOCKET", "/" + std::string(300, 'x')}}, 7).Tell("READY=1");
}

}  // namespace
}  // namespace penstock

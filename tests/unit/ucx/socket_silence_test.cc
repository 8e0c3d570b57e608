#include "engine/ucx/socket_silence.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace penstock {
namespace {

class SocketSilenceTest : public ::testing::Test {
 protected:
  ~SocketSilenceTest() override {
    for (const int one : opened_) close(one);
  }

  int Opened(int descriptor) {
    EXPECT_GE(descriptor, 0);
    opened_.push_back(descriptor);
    return descriptor;
  }
  int Epoll() { return Opened(epoll_create1(EPOLL_CLOEXEC)); }
  int Socket() { return Opened(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

  static void Watch(int epoll, int descriptor) {
    epoll_event event = {};
    EXPECT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), 0);
  }
  static int SilenceOf(int descriptor) {
    int milliseconds = -1;
    socklen_t size = sizeof(milliseconds);
    EXPECT_EQ(getsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size), 0);
    return milliseconds;
  }

 private:
  std::vector<int> opened_;
};

TEST_F(SocketSilenceTest, LimitsWhatIsWatchedDirectlyAndThroughOthers) {
  const int outer = Epoll(), inner = Epoll(), direct = Socket(), through = Socket(), other = Socket();
  Watch(outer, direct);
  Watch(outer, Opened(eventfd(0, EFD_CLOEXEC)));
  Watch(outer, inner);
  Watch(inner, through);
  LimitSilence(outer, 1500);
  EXPECT_EQ(SilenceOf(direct), 1500);
  EXPECT_EQ(SilenceOf(through), 1500);
  EXPECT_EQ(SilenceOf(other), 0) << "a connection of somebody else";
}

TEST_F(SocketSilenceTest, TakesWhatIsNotThere) {
  LimitSilence(-1, 1500);
  LimitSilence(Epoll(), 1500);
}

}  // namespace
}  // namespace penstock

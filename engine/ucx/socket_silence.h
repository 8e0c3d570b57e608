#pragma once

namespace penstock {

// Makes TCP connections fail whose other end does not acknowledge for that long what was sent, as where a link is cut: UCX
// has no setting for it, and would wait for a quarter of an hour. Which they are, the kernel tells of the epoll descriptor
// that watches them, by itself or through others of its kind. A connection that comes later needs another call.
void LimitSilence(int epoll_descriptor, int milliseconds);

}  // namespace penstock

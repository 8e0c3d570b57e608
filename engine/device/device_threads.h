#pragma once

namespace penstock {

// Gives the calling thread `count` intra-op threads. LibTorch reads its process-wide number at a thread's first parallel
// operator; asking for it first makes this thread keep its own.
void UseIntraOpThreads(int count);

}  // namespace penstock

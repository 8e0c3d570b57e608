#pragma once

// Adds what moves tensors between ranks.

#include "engine/schedule/schedule.h"

namespace penstock {

// Adds matched sends and receives where neighbouring stages live on different ranks: RECV_F directly before the F that
// consumes it, SEND_F directly after the F that produces it; RECV_B and SEND_B likewise around B or I. Nothing is added
// between stages of one rank. Runs after the recomputation pass, so that R stands before the wait for the gradient.
Schedule InsertCommunication(const Schedule& schedule);

}  // namespace penstock

#pragma once

// The rings of a pipeline as a file for trace viewers.

#include "server/http/status_pages.h"

namespace penstock {

// /tracez/download?name=PIPELINE[&format=chrome|perfetto]: everything that the rings still have, made piece by piece
// while it is sent. The name may be left away where there is only one pipeline.
//
// Fails:     404 for a pipeline that is not there or keeps no traces, 400 for another format.
HttpResponse TraceDownload(const StatusSources& sources, const HttpRequest& request);

}  // namespace penstock

#pragma once

#include <string>

namespace penstock {

// The names of a journal's files.
struct JournalPaths {
  static constexpr char kBlobs[] = "blobs";

  explicit JournalPaths(const std::string& folder)
      : above(folder.substr(0, folder.rfind('/'))),
        name(folder.substr(folder.rfind('/') + 1)),
        database(folder + "/journal.db"),
        mark(database + "-acknowledged"),
        blobs(folder + "/" + kBlobs),
        program(folder + "/program.pt2") {}

  const std::string above;  // the folder that the journal's folder stands in; a path without one names itself
  const std::string name;
  const std::string database;
  const std::string mark;
  const std::string blobs;
  const std::string program;  // the exported program of the pipeline, if it has one
};

}  // namespace penstock

#include "tests/bench/options.h"

#include <cstdlib>

namespace penstock::bench {

void ParseOptions(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
}

}  // namespace penstock::bench

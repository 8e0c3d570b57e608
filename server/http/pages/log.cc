// Which log lines are written, and the change of that.

#include "absl/strings/str_cat.h"
#include "engine/base/log_level.h"
#include "server/http/change_request.h"
#include "server/http/pages/lines.h"

namespace penstock {
namespace {

constexpr std::string_view kFlag = "log-level";

}  // namespace

Document LogPage(const StatusSources& sources) {
  Document page{.title = "Log", .state = StateLine(sources), .sections = {}, .refresh = true};
  const LogLevel now = CurrentLogLevel();
  Section facts{.id = "log", .title = "What is written"};
  facts.Fact("level", "level", std::string(NameOf(now)));
  for (const SettingRow& row : sources.settings) {
    if (row.name == kFlag) facts.Fact("level_at_start", "level at start", row.value);
  }
  facts.Fact("format", "format", std::string(NameOf(CurrentLogFormat())));
  facts.Fact("destination", "to", "stderr");
  page.sections.push_back(std::move(facts));

  Section levels{.id = "levels", .title = "By level"};
  levels.note = "Lines below the level are counted and not written. A change lasts until the daemon ends.";
  levels.columns = {{"level", "level"}, {"written", "written"}, {"lines", "lines since start"}};
  levels.columns.push_back({"change", "write from here on"});
  for (const LogLevel level : kLogLevels) {
    const std::string name(NameOf(level));
    Cell written(level >= now ? "yes" : "no");
    if (level >= now) written.mark = "good";
    levels.rows.push_back({name, std::move(written), Count(static_cast<double>(LoggedLines(level)))});
    Cell change(level == now ? "as it is" : absl::StrCat("set ", name));
    if (level != now) change.change = absl::StrCat("/logz?level=", name);
    levels.rows.back().push_back(std::move(change));
  }
  page.sections.push_back(std::move(levels));

  Section how{.id = "how", .title = "From a terminal"};
  how.Fact(
      "command", "change the level",
      absl::StrCat("curl -X POST -H 'X-Penstock-Change: 1' '", sources.facts().admin_address, "/logz?level=debug'"));
  page.sections.push_back(std::move(how));
  return page;
}

HttpResponse ChangeLogLevel(const HttpRequest& request) {
  if (const absl::Status allowed = CheckChange(request); !allowed.ok()) {
    return PlainAnswer(403, std::string(allowed.message()));
  }
  const std::string asked = QueryValue(request.query, "level");
  const std::optional<LogLevel> level = LogLevelFromName(asked);
  if (!level.has_value()) {
    // The value as JSON has it: no client writes control characters into a terminal.
    return PlainAnswer(400,
                       absl::StrCat("level: must be debug, info, warning or error, got \"", JsonEscape(asked), "\""));
  }
  SetLogLevel(*level);
  return PlainAnswer(200, absl::StrCat("log level ", asked));
}

}  // namespace penstock

// What memory is taken by: the ledger of the host's, and what lanes keep on their devices.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/observe/allocator_statistics.h"
#include "engine/observe/process_statistics.h"
#include "server/http/pages/lines.h"
#include "server/http/status_pages.h"

namespace penstock {
namespace {

constexpr size_t kMaxHolders = 50;

Cell BytesCell(int64_t bytes) { return Bytes(static_cast<double>(bytes)); }

Section LedgerSection(const StatusSources& sources, const MemoryRows& memory) {
  Section ledger{.id = "ledger", .title = "The host's memory"};
  ledger.note =
      "Reserved is what holders may take at most. Resident memory should be near the sum of what is reserved, what the "
      "process had taken before it served anything, and what its allocator keeps beside what is allocated.";
  ledger.Fact("limit_bytes", "limit (--memory-limit)", BytesCell(memory.limit_bytes));
  ledger.Fact("reserved_bytes", "reserved", BytesCell(memory.bytes));
  ledger.Fact(
      "ratio", "full",
      Share(memory.limit_bytes > 0 ? static_cast<double>(memory.bytes) / static_cast<double>(memory.limit_bytes) : 0));
  ledger.Fact("process_bytes", "the process by itself", Bytes(sources.registry->memory().process.value()));
  ledger.Fact("allocator_bytes", "kept by the allocator", BytesCell(ReadAllocatorStatistics().kept_bytes));
  if (const auto read = ReadProcessStatistics(); read.ok()) {
    ledger.Fact("resident_bytes", "resident memory", BytesCell(read->resident_bytes));
  }
  return ledger;
}

Section ClassSection(const MemoryRows& memory) {
  Section classes{.id = "classes", .title = "What it is reserved for"};
  classes.note = "The rest of a class's own bound is not taken from others unless it is kept for it.";
  classes.columns = {{"class", "class"},     {"bytes", "reserved"},  {"peak_bytes", "at most so far"},
                     {"limit_bytes", "of"},  {"kept_bytes", "kept"}, {"reservations", "reservations"},
                     {"refusals", "refused"}};
  for (const MemoryRows::Class& row : memory.classes) {
    classes.rows.push_back({row.name, BytesCell(row.bytes), BytesCell(row.peak_bytes),
                            BytesCell(row.limit_bytes > 0 ? row.limit_bytes : memory.limit_bytes),
                            BytesCell(row.kept_bytes), Count(static_cast<double>(row.reservations)),
                            Count(static_cast<double>(row.refusals))});
  }
  return classes;
}

Section HolderSection(const MemoryRows& memory) {
  Section holders{.id = "holders", .title = "Who holds most"};
  holders.empty = "nothing is reserved";
  holders.columns = {{"class", "class"}, {"caller", "caller"}, {"pipeline", "pipeline"}, {"bytes", "reserved"}};
  for (size_t i = 0; i < memory.holders.size() && i < kMaxHolders; ++i) {
    const MemoryRows::Holder& row = memory.holders[i];
    holders.rows.push_back({row.kind, row.identity, row.pipeline, BytesCell(row.bytes)});
  }
  return holders;
}

}  // namespace

Document MemoryPage(const StatusSources& sources) {
  Document page{.title = "Memory", .state = StateLine(sources), .sections = {}, .refresh = true};
  Section devices{.id = "devices", .title = "Devices"};
  devices.columns = {{"device", "device"},
                     {"bytes", "kept"},
                     {"limit_bytes", "of"},
                     {"ratio", "full"},
                     {"allocated_bytes", "allocated"},
                     {"cached_bytes", "cached"}};
  devices.note = "An accelerator's allocator counts what it has given to tensors, and what it keeps for the next ones.";
  Section lanes{.id = "lanes", .title = "By kind"};
  lanes.note = "The stash, what forwards keep for their backwards, as it was profiled; all else as it is.";
  lanes.empty = "no pipeline, nothing kept";
  lanes.columns = {{"pipeline", "pipeline"}, {"lane", "lane"}, {"device", "device"}};
  for (std::string_view kind : kMemoryKindNames) {
    lanes.columns.push_back({absl::StrCat(std::string(kind), "_bytes"), std::string(kind)});
  }
  std::map<std::string, double> kept;
  for (const auto& pipeline : sources.registry->Snapshot()) {
    for (int i = 0; i < pipeline->lane_count(); ++i) {
      const LaneMetrics& lane = pipeline->lane(i);
      std::vector<Cell> row = {PipelineLink(pipeline->name()), Count(i), lane.description.device};
      for (size_t kind = 0; kind < kMemoryKindNames.size(); ++kind) {
        const double bytes = lane.memory->at(kind).value();
        kept[lane.description.device] += bytes;
        row.push_back(Bytes(bytes));
      }
      lanes.rows.push_back(std::move(row));
    }
  }
  for (const DeviceDescription& device : sources.registry->server().devices()) {
    const auto limit = static_cast<double>(device.memory_limit_bytes);
    const auto bytes = device.allocator ? device.allocator() : std::nullopt;
    devices.rows.push_back({device.name, Bytes(kept[device.name]), Bytes(limit),
                            Share(limit > 0 ? kept[device.name] / limit : 0),
                            bytes ? Bytes(static_cast<double>(bytes->allocated)) : Unknown(),
                            bytes ? Bytes(static_cast<double>(bytes->cached)) : Unknown()});
  }
  const MemoryRows memory = sources.memory();
  page.sections = {LedgerSection(sources, memory), ClassSection(memory), HolderSection(memory), std::move(devices),
                   std::move(lanes)};
  return page;
}

}  // namespace penstock

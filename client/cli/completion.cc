#include "client/cli/completion.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/help_text.h"

namespace penstock {
namespace {

// A command or group, by its words.
struct CommandEntry {
  std::string path;  // "" for the program
  std::vector<std::string> commands;
  std::vector<const CLI::Option*> options;
  std::vector<std::string> descriptions;  // of the commands
  std::vector<std::string> positionals;   // PIPELINE, CHECKPOINT, FILE, ...: what stands where no option does
};

// Arguments whose values the daemon knows, and the command that lists them. What follows is the word before.
struct NamedThing {
  const char* kind;
  const char* list;
  bool of_the_first = false;  // of the pipeline that was given first
};
constexpr NamedThing kNamedThings[] = {
    {"PIPELINE", "pipeline list"}, {"CHECKPOINT", "checkpoint list", true}, {"MODEL", "model list"}};

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The closed set of an option's values, which CLI11 tells as {a,b} in its type.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t from = type.find('{'), to = type.find('}');
  if (from == std::string::npos || to == std::string::npos) return {};
  return absl::StrSplit(type.substr(from + 1, to - from - 1), ',');
}

void Collect(const CLI::App& app, std::vector<CommandEntry>* entries) {
  CommandEntry entry;
  entry.path = CommandWords(app);
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      entry.positionals.push_back(option->get_name(true));
    } else {
      entry.options.push_back(option);
    }
  }
  const std::vector<const CLI::App*> below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : below) {
    entry.commands.push_back(command->get_name());
    entry.descriptions.push_back(command->get_description());
  }
  entries->push_back(std::move(entry));
  for (const CLI::App* command : below) Collect(*command, entries);
}

std::set<std::string> ValuedOptions(const std::vector<CommandEntry>& entries) {
  std::set<std::string> names;
  for (const CommandEntry& entry : entries) {
    for (const CLI::Option* option : entry.options) {
      if (!TakesValue(*option)) continue;
      for (const std::string& name : NamesOf(*option)) names.insert(name);
    }
  }
  return names;
}

std::string BashScript(const std::vector<CommandEntry>& entries) {
  std::string commands, options, choices, positionals, lists;
  for (const CommandEntry& entry : entries) {
    std::vector<std::string> names;
    for (const CLI::Option* option : entry.options) {
      for (const std::string& name : NamesOf(*option)) {
        names.push_back(name);
        const std::vector<std::string> values = ChoicesOf(*option);
        if (values.empty()) continue;
        // Those of the program hold after every command.
        absl::StrAppend(&choices, "    \"", entry.path.empty() ? "\"*\" " : entry.path + " ", name, "\") echo \"",
                        absl::StrJoin(values, " "), "\" ;;\n");
      }
    }
    if (!entry.commands.empty()) {
      absl::StrAppend(&commands, "    \"", entry.path, "\") echo \"", absl::StrJoin(entry.commands, " "), "\" ;;\n");
    }
    absl::StrAppend(&options, "    \"", entry.path, "\") echo \"", absl::StrJoin(names, " "), "\" ;;\n");
    if (!entry.positionals.empty()) {
      absl::StrAppend(&positionals, "    \"", entry.path, "\") echo \"", absl::StrJoin(entry.positionals, " "),
                      "\" ;;\n");
    }
  }
  for (const NamedThing& thing : kNamedThings) {
    absl::StrAppend(&lists, "    ", thing.kind, ") list=\"", thing.list, thing.of_the_first ? " $first" : "",
                    "\" ;;\n");
  }
  return absl::StrCat("_penstock_commands() {\n  case \"$1\" in\n", commands,
                      "  esac\n}\n\n_penstock_options() {\n  case \"$1\" in\n", options,
                      "  esac\n}\n\n_penstock_choices() {\n  case \"$1\" in\n", choices,
                      "  esac\n}\n\n_penstock_positionals() {\n  case \"$1\" in\n", positionals,
                      "  esac\n}\n\n# What the daemon has of a kind; $3 and on: how to reach it.\n_penstock_names() {\n"
                      "  local first=\"$2\" list=\"\"\n  case \"$1\" in\n",
                      lists, R"sh(    *) return ;;
  esac
  shift 2
  penstock --timeout 2 -o name "$@" $list 2>/dev/null | sed 's,.*/,,'
}

_penstock_takes_value() {
  case "$1" in
    )sh",
                      absl::StrJoin(ValuedOptions(entries), " | "), R"sh() return 0 ;;
  esac
  return 1
}

_penstock() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}" command="" words="" i
  local given=() where=() kinds=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "${COMP_WORDS[i - 1]}" in
      --server | --caller) where+=("${COMP_WORDS[i - 1]}" "${COMP_WORDS[i]}") ;;
    esac
    _penstock_takes_value "${COMP_WORDS[i - 1]}" && continue
    case " $(_penstock_commands "$command") " in
      *" ${COMP_WORDS[i]} "*) command="${command:+$command }${COMP_WORDS[i]}" ;;
      *) [[ ${COMP_WORDS[i]} == -* ]] || given+=("${COMP_WORDS[i]}") ;;
    esac
  done
  COMPREPLY=()
  if _penstock_takes_value "$previous"; then
    words="$(_penstock_choices "$command $previous")"
  elif [[ $current == -* ]]; then
    words="$(_penstock_options "$command") $(_penstock_options "")"
  else
    words="$(_penstock_commands "$command")"
    kinds=($(_penstock_positionals "$command"))
    [[ -n $words ]] || words="$(_penstock_names "${kinds[${#given[@]}]}" "${given[0]}" "${where[@]}")"
  fi
  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
}

complete -o default -F _penstock penstock
)sh");
}

std::string FishText(const std::string& text) {
  return "'" + absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}) + "'";
}

std::string FishScript(const std::vector<CommandEntry>& entries) {
  std::vector<std::string> paths;
  std::string rules;
  for (const CommandEntry& entry : entries) {
    if (!entry.path.empty()) paths.push_back(FishText(entry.path));
    const std::string here = absl::StrCat("complete -c penstock -n ", FishText("__penstock_at \"" + entry.path + "\""));
    for (size_t i = 0; i < entry.commands.size(); ++i) {
      absl::StrAppend(&rules, here, " -f -a ", entry.commands[i], " -d ", FishText(entry.descriptions[i]), "\n");
    }
    for (size_t i = 0; i < entry.positionals.size(); ++i) {
      for (const NamedThing& thing : kNamedThings) {
        if (entry.positionals[i] != thing.kind) continue;
        const std::string list =
            absl::StrCat("(__penstock_names ", thing.list, thing.of_the_first ? " $__penstock_given[1]" : "", ")");
        absl::StrAppend(&rules, "complete -c penstock -n ",
                        FishText(absl::StrCat("__penstock_at \"", entry.path, "\" ", i)), " -f -a ", FishText(list),
                        "\n");
      }
    }
    for (const CLI::Option* option : entry.options) {
      const std::string where = entry.path.empty() ? "complete -c penstock" : here;
      absl::StrAppend(&rules, where);
      for (const std::string& name : option->get_snames()) absl::StrAppend(&rules, " -s ", name);
      for (const std::string& name : option->get_lnames()) absl::StrAppend(&rules, " -l ", name);
      const std::vector<std::string> choices = ChoicesOf(*option);
      if (!choices.empty()) {
        absl::StrAppend(&rules, " -x -a ", FishText(absl::StrJoin(choices, " ")));
      } else if (TakesValue(*option)) {
        absl::StrAppend(&rules, " -r");
      }
      absl::StrAppend(&rules, " -d ", FishText(option->get_description()), "\n");
    }
  }
  return absl::StrCat(R"sh(function __penstock_at
    set -l path
    set -l value 0
    set -g __penstock_given
    for word in (commandline -opc)[2..-1]
        if test $value = 1
            set value 0
        else if contains -- $word )sh",
                      absl::StrJoin(ValuedOptions(entries), " "), R"sh(
            set value 1
        else if contains -- (string join -- ' ' $path $word) )sh",
                      absl::StrJoin(paths, " "), R"sh(
            set -a path $word
        else if not string match -q -- '-*' $word
            set -a __penstock_given $word
        end
    end
    set -l here (string join -- ' ' $path)
    test "$here" = "$argv[1]" -a "$argv[2]" = "" -o "$here" = "$argv[1]" -a "$argv[2]" = (count $__penstock_given)
end

function __penstock_names
    set -l words (commandline -opc)
    set -l where
    for i in (seq 2 (count $words))
        if contains -- $words[(math $i - 1)] --server --caller
            set -a where $words[(math $i - 1)] $words[$i]
        end
    end
    penstock --timeout 2 -o name $where $argv 2>/dev/null | string replace -r '.*/' ''
end

)sh",
                      rules);
}

}  // namespace

const std::vector<std::string>& CompletionShells() {
  static const auto* shells = new std::vector<std::string>{"bash", "fish", "zsh"};
  return *shells;
}

std::string CompletionScript(const CLI::App& root, const std::string& shell) {
  std::vector<CommandEntry> entries;
  Collect(root, &entries);
  if (shell == "fish") {
    return "# Completion of penstock. Once: penstock completion fish >~/.config/fish/completions/penstock.fish\n" +
           FishScript(entries);
  }
  if (shell == "zsh") {
    return "#compdef penstock\n# Completion of penstock. Load it with: source <(penstock completion zsh)\n"
           "autoload -Uz bashcompinit && bashcompinit\n\n" +
           BashScript(entries) +
           // As the file _penstock of zsh's own functions it is run by the first key, which is to complete, too.
           "[[ $funcstack[1] != _penstock ]] || _bash_complete -o default -F _penstock\n";
  }
  return "# Completion of penstock. Load it with: source <(penstock completion bash)\n" + BashScript(entries);
}

}  // namespace penstock

#include "client/cli/help_text.h"

#include <sstream>

#include "client/cli/near_miss.h"

namespace penstock {
namespace {

class ExamplesFirstFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const override {
    std::string help;
    if (mode == CLI::AppFormatMode::Normal && !app->get_footer().empty()) {
      help = "Examples:\n";
      std::istringstream lines(app->get_footer());
      for (std::string line; std::getline(lines, line);) help += "  " + line + "\n";
      help += "\n";
    }
    const std::string words = CommandWords(*app);
    return help + CLI::Formatter::make_help(app, words.empty() ? "penstock" : "penstock " + words, mode);
  }
  std::string make_footer(const CLI::App*) const override { return ""; }
};

std::vector<const CLI::App*> Verbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> NamesOf(const std::vector<const CLI::App*>& apps) {
  std::vector<std::string> names;
  for (const CLI::App* app : apps) names.push_back(app->get_name());
  return names;
}

// Options of a command and of all groups above it.
const CLI::Option* FindOption(const CLI::App* app, const std::string& name) {
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

std::vector<std::string> OptionNames(const CLI::App* app) {
  std::vector<std::string> names;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

std::string Unknown(const std::string& kind, const std::string& word, const std::string& near) {
  return "unknown " + kind + " '" + word + "'" + (near.empty() ? "" : ": did you mean '" + near + "'?");
}

void Dump(const CLI::App& app, std::string* text) {
  if (app.get_parent() != nullptr && Verbs(app).empty()) {
    *text += CommandWords(app);
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_lnames() == std::vector<std::string>{"help"}) continue;
      const bool flag = option->get_items_expected_max() == 0;
      const std::string type = flag || option->get_positional() ? "" : " " + option->get_type_name();
      const std::string name = option->get_positional() ? option->get_name() : option->get_name(false, true) + type;
      *text += option->get_required() ? " " + name : " [" + name + "]";
    }
    *text += "\n";
  }
  for (const CLI::App* verb : Verbs(app)) Dump(*verb, text);
}

// Goes over arguments as CLI11 does; returns what is wrong with the first that is unknown, and notes options before it
// that have nothing after their `=`.
std::string Walk(const CLI::App& root, const std::vector<std::string>& arguments,
                 std::vector<std::string>* without_value) {
  const CLI::App* app = &root;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") return "";
    if (argument.size() > 1 && argument[0] == '-') {
      const size_t equals = argument.find('=');
      const std::string name = argument.substr(0, equals);
      const CLI::Option* option = FindOption(app, name);
      if (option == nullptr && argument[1] != '-') option = FindOption(app, name.substr(0, 2));
      if (option == nullptr) return Unknown("option", name, NearMiss(name, OptionNames(app)));
      const bool attached = equals != std::string::npos || (argument[1] != '-' && argument.size() > 2);
      const bool is_switch = option->get_items_expected_max() == 0;
      if (equals + 1 == argument.size()) without_value->push_back(name);
      if (!attached && !is_switch) ++i;
      continue;
    }
    const std::vector<const CLI::App*> verbs = Verbs(*app);
    if (verbs.empty()) continue;  // a positional argument
    const CLI::App* verb = nullptr;
    for (const CLI::App* candidate : verbs) {
      if (candidate->get_name() == argument) verb = candidate;
    }
    if (verb == nullptr) return Unknown("command", argument, NearMiss(argument, NamesOf(verbs)));
    app = verb;
  }
  return "";
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> ExamplesFirst() {
  auto formatter = std::make_shared<ExamplesFirstFormatter>();
  formatter->column_width(34);
  return formatter;
}

std::string CommandWords(const CLI::App& command) {
  if (command.get_parent() == nullptr) return "";
  const std::string above = CommandWords(*command.get_parent());
  return above.empty() ? command.get_name() : above + " " + command.get_name();
}

std::string DumpCommands(const CLI::App& root) {
  std::string text;
  Dump(root, &text);
  return text;
}

std::string UnknownArgument(const CLI::App& root, const std::vector<std::string>& arguments) {
  std::vector<std::string> empty;
  return Walk(root, arguments, &empty);
}

std::string EmptyValue(const CLI::App& root, const std::vector<std::string>& arguments) {
  std::vector<std::string> empty;
  Walk(root, arguments, &empty);
  return empty.empty() ? "" : empty.front() + ": takes no such value, got ''";
}

}  // namespace penstock

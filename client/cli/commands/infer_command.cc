// penstock infer

#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/cli/byte_model.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "client/cli/sampling.h"
#include "client/cli/standing_pipeline.h"
#include "client/cli/tensor_file.h"
#include "client/cli/text_windows.h"
#include "client/cli/value_json.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kAnswersPerRelease = 32;
constexpr int64_t kInlineBytes = 1 << 20;
constexpr int64_t kReplySeconds = 60;
constexpr int64_t kMaxPrintedElements = 65'536;

struct InferOptions {
  std::string pipeline;
  std::string prompt;
  int bytes = 100;
  double temperature = 0;
  uint64_t seed = 1;
  int32_t priority = 0;
  int64_t sequence = 0;  // 0: the longest that the pipeline takes
  std::string input;
  std::vector<std::string> values;  // NAME=JSON
  std::vector<std::string> whole;   // names of tensors
  std::string to;
};

// Bytes from a model must not steer a terminal.
std::string ForTerminal(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  if (code == '\n' || code == '\t' || (code >= 0x20 && code != 0x7f)) return std::string(1, byte);
  return "?";
}

void AskForAnswer(v1::InferRequest* request) {
  request->mutable_reply()->mutable_wait_for()->set_seconds(kReplySeconds);
  request->mutable_reply()->set_inline_bytes(kInlineBytes);
}

// Gives back the handles of answers that were read, a batch at a time.
class Releaser {
 public:
  explicit Releaser(PipelineClient& client) : client_(client) {}
  ~Releaser() { Flush(); }

  void Add(const std::string& handle) {
    names_.push_back(handle);
    if (names_.size() >= kAnswersPerRelease) Flush();
  }

 private:
  void Flush() {
    if (names_.empty()) return;
    client_.GiveBack(names_);
    names_.clear();
  }

  PipelineClient& client_;
  std::vector<std::string> names_;
};

// The byte after `window`.
absl::StatusOr<int> NextByte(const ByteModel& model, std::string_view window, const InferOptions& options,
                             PipelineClient& client, Releaser& releaser, std::mt19937_64& random) {
  v1::InferRequest request;
  request.set_pipeline(model.pipeline);
  v1::Input* input = request.add_inputs();
  input->set_name(model.input);
  *input->mutable_tensor() = BytesAsTensor(input->name(), window).ToMessage();
  request.add_outputs(model.output);
  request.set_micro_batches(1);
  request.set_priority(options.priority);
  AskForAnswer(&request);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::InferResponse response, client.Infer(std::move(request)));
  const std::string& handle = response.outputs().handle().name();
  releaser.Add(handle);
  if (response.outputs().tensors_size() == 0)
    PENSTOCK_RETURN_IF_ERROR(client.AwaitHandle(handle, absl::Minutes(10)).status());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<HostTensor> outputs, client.ResultTensors(response.outputs()));
  const absl::Status wrong = Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                                   "--prompt needs a pipeline that answers FP32 scores of 256 bytes for each position");
  if (outputs.size() != 1 || outputs[0].header().shape.empty() || outputs[0].header().shape.back() != 256) return wrong;
  PENSTOCK_ASSIGN_OR_RETURN(const std::span<const float> scores, outputs[0].Values<float>());
  if (scores.size() != window.size() * 256) return wrong;
  return SampleIndex(scores.last(256), options.temperature, random);
}

absl::Status Continue(const InferOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::Pipeline pipeline, StandingPipeline(*client, options.pipeline));
  PENSTOCK_ASSIGN_OR_RETURN(const ByteModel model, AsByteModel(pipeline, options.sequence));

  Releaser releaser(*client);
  std::mt19937_64 random(options.seed);
  // Text appears as it is made; in the other formats it is one answer at the end.
  const bool live = session.options().output == OutputFormat::kTable || session.options().output == OutputFormat::kWide;
  const auto emit = [&](std::string_view bytes) {
    if (!live) return;
    for (char byte : bytes) {
      session.out() << (session.out_is_terminal() ? ForTerminal(byte) : std::string(1, byte));
    }
    session.out().flush();
  };
  std::string text = options.prompt;
  emit(text);
  for (int i = 0; i < options.bytes; ++i) {
    const size_t length = std::min<size_t>(text.size(), static_cast<size_t>(model.sequence));
    PENSTOCK_ASSIGN_OR_RETURN(const int byte, NextByte(model, std::string_view(text).substr(text.size() - length),
                                                       options, *client, releaser, random));
    text += static_cast<char>(byte);
    emit(std::string_view(text).substr(text.size() - 1));
    if (!session.out()) return absl::OkStatus();  // nobody reads it: the exit code tells
  }
  emit("\n");
  if (!live) {
    session.Print({{{"pipeline", pipeline.name()},
                    {"prompt", options.prompt},
                    {"continuation", text.substr(options.prompt.size())}},
                   {},
                   {pipeline.name()},
                   "",
                   ""});
  }
  return absl::OkStatus();
}

// NAME=JSON.
absl::Status AddValue(const std::string& assignment, v1::InferRequest* request) {
  const size_t equals = assignment.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return UsageError("--value", "must be NAME=JSON, got " + assignment);
  }
  v1::Input* input = request->add_inputs();
  input->set_name(assignment.substr(0, equals));
  PENSTOCK_ASSIGN_OR_RETURN(*input->mutable_value(),
                            ValueFromJson(assignment.substr(equals + 1), "--value " + input->name()));
  return absl::OkStatus();
}

absl::StatusOr<v1::InferRequest> FileRequest(const InferOptions& options, Session& session) {
  v1::InferRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_request_id(session.options().request_id);
  request.set_priority(options.priority);
  std::vector<HostTensor> tensors;
  if (!options.input.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(tensors, ReadTensorFile(options.input, session));
  }
  std::set<std::string> whole(options.whole.begin(), options.whole.end());
  for (const HostTensor& tensor : tensors) {
    v1::Input* input = request.add_inputs();
    input->set_name(tensor.name());
    *input->mutable_tensor() = tensor.ToMessage();
    input->set_whole(whole.erase(tensor.name()) != 0);
  }
  if (!whole.empty()) return UsageError("--whole", "must name a tensor of --input, got " + *whole.begin());
  for (const std::string& assignment : options.values) PENSTOCK_RETURN_IF_ERROR(AddValue(assignment, &request));
  AskForAnswer(&request);
  return request;
}

// Tensors that go to no file are printed, too.
absl::StatusOr<Json> OutputsJson(const FetchedHandle& fetched, bool with_tensors) {
  Json outputs = Json::object();
  if (with_tensors) {
    int64_t elements = 0;
    for (const HostTensor& tensor : fetched.tensors) {
      elements += tensor.header().byte_size / ItemSize(tensor.header().type);
    }
    if (elements > kMaxPrintedElements) {
      return UsageError("--to", absl::StrCat("missing: the outputs have ", elements, " elements, and at most ",
                                             kMaxPrintedElements, " are printed"));
    }
    for (const HostTensor& tensor : fetched.tensors) outputs[tensor.name()] = TensorToJson(tensor);
  }
  outputs.update(ValuesToJson(fetched));
  return outputs;
}

// Runs tensors of a file, and values, through the pipeline.
absl::Status RunFile(const InferOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(v1::InferRequest request, FileRequest(options, session));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::InferResponse response, client->Infer(std::move(request)));
  const v1::Result& result = response.outputs();
  Releaser releaser(*client);
  releaser.Add(result.handle().name());
  if (result.tensors_size() == 0 && result.values_size() == 0) {
    PENSTOCK_RETURN_IF_ERROR(client->AwaitHandle(result.handle().name(), absl::Minutes(10)).status());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const FetchedHandle fetched, client->FetchResult(result));
  if (!options.to.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string file, TensorFile(options.to, "--to", fetched.tensors, {}));
    PENSTOCK_RETURN_IF_ERROR(session.WriteFile(options.to, file));
    session.Say(absl::StrCat("wrote ", fetched.tensors.size(), " tensors"));
    if (options.to == "-") {
      SayLeftOut(fetched, session);
      return absl::OkStatus();
    }
    if (fetched.values.empty()) return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Json outputs, OutputsJson(fetched, /*with_tensors=*/options.to.empty()));
  const std::string text = outputs.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  session.Print({outputs, {outputs}, {PipelineName(options.pipeline)}, text, text});
  return absl::OkStatus();
}

}  // namespace

void AddInferCommand(CommandTable& table) {
  CLI::App* command =
      table.Add(table.root(), "infer", "Continue a text, or run tensors of a file and values through a pipeline",
                "penstock infer gpt --prompt \"Once upon \" --bytes 100\n"
                "penstock infer gpt --prompt \"Once upon \" --temperature 0.8 --seed 7\n"
                "penstock infer mlp --input batch.safetensors --to answers.npz\n"
                "penstock infer mine --input batch.safetensors --whole table --value 'flags=[1, null]'");
  auto options = std::make_shared<InferOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  CLI::Option* prompt = command->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  command->add_option("--bytes", options->bytes, "How many bytes to add")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: always the likeliest byte; 1: as the model believes")
      ->check(NonNegative())
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the draws")->type_name("N")->capture_default_str();
  command->add_option("--sequence", options->sequence, "How many of the last bytes the model sees; unset: all it takes")
      ->check(Positive())
      ->type_name("N");
  command
      ->add_option("--input", options->input, "Tensors named as the pipeline's inputs, safetensors or .npz; - is stdin")
      ->type_name("FILE")
      ->excludes(prompt);
  command
      ->add_option("--whole", options->whole, "A tensor of --input that every micro-batch gets all of; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->excludes(prompt);
  command
      ->add_option("--value", options->values,
                   "An input that is no tensor, as JSON; null is None, an object a dictionary; may be repeated")
      ->type_name("NAME=JSON")
      ->allow_extra_args(false)
      ->excludes(prompt);
  command
      ->add_option(
          "--to", options->to,
          "Where the output tensors go, safetensors or .npz; - is stdout; without it, all outputs are printed as "
          "JSON, with it those that are no tensors")
      ->type_name("FILE");
  command->add_option("--priority", options->priority, "Among calls that wait: higher ones go first")
      ->type_name("N")
      ->capture_default_str();
  table.Run(command, [options](Session& session) -> absl::Status {
    if (!options->input.empty() || !options->values.empty()) return RunFile(*options, session);
    if (options->prompt.empty()) return UsageError("--prompt", "missing or empty; or give --input or --value");
    return Continue(*options, session);
  });
}

}  // namespace penstock

#include "server/rpc/services/pipeline_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/checkpoint_convert.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/recipe_convert.h"
#include "server/rpc/convert/record_of.h"

namespace penstock {
namespace {

// Set when the caller gives up or its deadline has passed.
std::shared_ptr<CancelToken> CancelOf(UnaryCallBase& call) {
  auto cancel = std::make_shared<CancelToken>();
  call.OnCancelled([cancel] { cancel->Cancel(); });
  return cancel;
}

// NO_PLAN, with what the most promising refusal says.
absl::Status NoPlan(const PlanSearch& search, double planning_seconds) {
  if (!search.complete && search.refused.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_PLAN", "no plan was found in the time of planning")
        .With("field", "spec.planning_seconds")
        .With("value", absl::StrCat(planning_seconds));
  }
  const absl::Status why = search.WhyNone();
  absl::Status status =
      Error(absl::StatusCode::kFailedPrecondition, "NO_PLAN", absl::StrCat("there is no plan: ", why.message()));
  for (const auto& [name, value] : ValuesOf(why)) status = WithValue(std::move(status), name, value);
  return status;
}

// A specification alone has a limit of its own: it grows when it is read.
absl::Status CheckSize(const v1::PipelineSpec& spec) {
  const auto bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes <= kSpecificationMessageBytes) return absl::OkStatus();
  return InvalidField("spec", absl::StrCat("must have at most ", kSpecificationMessageBytes, " bytes"),
                      absl::StrCat(bytes));
}

absl::StatusOr<Value> SampleValue(const InputSource& source, const std::string& field) {
  if (const auto* tensor = std::get_if<at::Tensor>(&source.source)) {
    return source.whole ? Value(WholeTensor{*tensor}) : Value(*tensor);
  }
  const auto* value = std::get_if<Value>(&source.source);
  if (value != nullptr && source.inside.empty()) return *value;
  return InvalidField(field, "must be in the message", "a handle");
}

absl::Status HasChanged(const std::string& name) {
  return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
               absl::StrCat("pipeline ", name, " has changed since the call came: ask again"))
      .With("pipeline", name);
}

// Whether a pipeline is what the caller has seen, where it says so, and what the call has read.
absl::Status CheckEtag(const PipelineEntry& now, Epoch epoch, const std::string& given, uint64_t read) {
  const std::string etag = EtagOf(now, epoch);
  if (!given.empty() && given != etag) {
    return Error(absl::StatusCode::kFailedPrecondition, "ETAG_MISMATCH",
                 absl::StrCat("pipeline ", now.name, " has changed: its etag is ", etag, ", got ", Shortened(given)))
        .With("field", "etag")
        .With("value", Shortened(given));
  }
  if (now.version == read) return absl::OkStatus();
  return HasChanged(now.name);
}

// Of a call that makes nothing: the pipeline as it would be.
absl::StatusOr<v1::Pipeline> PlannedOnly(const std::string& name, const PipelineSpec& spec,
                                         const absl::StatusOr<Plan>& plan) {
  if (!plan.ok()) return plan.status();
  v1::Pipeline planned;
  planned.set_name("pipelines/" + name);
  *planned.mutable_spec() = ToProto(spec);
  *planned.mutable_plan() = ToProto(*plan);
  return planned;
}

absl::StatusOr<std::shared_ptr<const PlanningSample>> ReadSample(const v1::PlanningSample& message) {
  PlanningSample sample;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<InputSource> inputs, FromProto(message.inputs(), "sample.inputs"));
  for (size_t i = 0; i < inputs.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(Value value, SampleValue(inputs[i], absl::StrCat("sample.inputs[", i, "]")));
    sample.inputs.push_back({inputs[i].name, std::move(value)});
  }
  if (message.has_target()) {
    PENSTOCK_ASSIGN_OR_RETURN(const InputSource source, FromProto(message.target(), "sample.target"));
    PENSTOCK_ASSIGN_OR_RETURN(const Value target, SampleValue(source, "sample.target"));
    if (!target.is_tensor()) return InvalidField("sample.target", "must be a tensor", target.TypeName());
    sample.target = *target.tensor();
  }
  return std::make_shared<const PlanningSample>(std::move(sample));
}

// The pipeline of a call that has its name and a request_id alone.
template <typename CallPtr>
absl::StatusOr<std::string> NamedFor(const CallPtr& call) {
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(call->request().request_id(), true));
  call->set_request_id(call->request().request_id());
  PENSTOCK_ASSIGN_OR_RETURN(std::string name, ParsePipelineName(call->request().name(), "name"));
  PENSTOCK_RETURN_IF_ERROR(CheckSees(call->identity(), name));
  return name;
}

template <typename CallPtr>
CallContext ContextFor(const CallPtr& call) {
  CallContext context;
  context.caller = call->caller();
  context.request_id = call->request().request_id();
  context.payload_digest = PayloadDigest(call->request());
  return context;
}

template <typename CallPtr>
PipelineTable::UpdateCallback AnswerPipeline(const CallPtr& call, Epoch epoch) {
  return [call, epoch](absl::StatusOr<PipelineEntry> entry) {
    if (!entry.ok()) return call->Fail(entry.status());
    call->Reply(ToProto(*entry, epoch));
  };
}

}  // namespace

grpc::ServerUnaryReactor* PipelineServiceImpl::CreatePipeline(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::CreatePipelineRequest, v1::Pipeline>(
      gate_.Of("CreatePipeline"), context, request, response, kWorkMessageBytes,
      [this](const auto& call) {
        if (absl::Status accepted = Create(call); !accepted.ok()) call->Fail(accepted);
      },
      environment_.memory);
}

absl::Status PipelineServiceImpl::Create(const UnaryCallPtr<v1::CreatePipelineRequest, v1::Pipeline>& call) {
  const v1::CreatePipelineRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), !request.validate_only()));
  call->set_request_id(request.request_id());
  PENSTOCK_RETURN_IF_ERROR(CheckIdentifier(request.pipeline_id(), "pipeline_id"));
  PENSTOCK_RETURN_IF_ERROR(call->gate().CheckReach(call->identity(), request.pipeline_id()));
  CheckpointSpecifications specs{request.spec(), request.spec()};
  std::optional<CheckpointSource> from;
  if (!request.from_checkpoint().empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName source,
                              ParseCheckpointName(request.from_checkpoint(), "from_checkpoint"));
    PENSTOCK_ASSIGN_OR_RETURN(const CheckpointInfo info, FindCheckpoint(environment_, call->identity(), source));
    PENSTOCK_ASSIGN_OR_RETURN(specs, SpecificationFrom(info, request.spec()));
    from = CheckpointSource{source.pipeline, source.checkpoint};
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSize(request.spec()));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe recipe, RecipeOf(specs.planned, specs.planned));
  recipe.from = std::move(from);
  PipelineSpec& spec = recipe.spec;
  if (request.has_sample()) {
    PENSTOCK_ASSIGN_OR_RETURN(spec.sample, ReadSample(request.sample()));
  }
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  if (request.validate_only()) {
    environment_.pipelines->Plan(call->caller(), spec, CancelOf(*call), [call, spec](absl::StatusOr<Plan> plan) {
      call->Answer(PlannedOnly(call->request().pipeline_id(), spec, plan));
    });
    return absl::OkStatus();
  }
  CallContext context;
  context.caller = call->caller();
  context.request_id = request.request_id();
  context.payload_digest = PayloadDigest(request);
  PipelineTable::AcceptExisting accept;
  if (request.exist_ok()) {
    // One that trained on under the name of its own checkpoint is as it was asked for.
    PENSTOCK_ASSIGN_OR_RETURN(const PipelineSpec asked, FromProto(specs.asked));
    accept = [same = std::vector<PipelineSpec>{asked, spec}](const PipelineEntry& entry) {
      return CheckSameSpecification(entry, same);
    };
  }
  environment_.pipelines->Create(std::move(context), request.pipeline_id(), std::move(recipe), std::move(accept),
                                 [call, epoch = environment_.handles->epoch()](absl::StatusOr<PipelineEntry> entry) {
                                   if (!entry.ok()) return call->Fail(entry.status());
                                   call->Reply(ToProto(*entry, epoch));
                                 });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::PlanPipeline(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::PlanPipelineRequest, v1::PlanPipelineResponse>(
      gate_.Of("PlanPipeline"), context, request, response, kWorkMessageBytes,
      [this](const auto& call) {
        if (absl::Status accepted = Search(call); !accepted.ok()) call->Fail(accepted);
      },
      environment_.memory);
}

absl::Status PipelineServiceImpl::Search(const UnaryCallPtr<v1::PlanPipelineRequest, v1::PlanPipelineResponse>& call) {
  const v1::PlanPipelineRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckSize(request.spec()));
  PENSTOCK_ASSIGN_OR_RETURN(PipelineSpec spec, FromProto(request));
  if (request.has_sample()) {
    PENSTOCK_ASSIGN_OR_RETURN(spec.sample, ReadSample(request.sample()));
  }
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  const double seconds = spec.limits.planning_seconds;
  environment_.pipelines->Search(call->caller(), std::move(spec), CancelOf(*call),
                                 [call, seconds](absl::StatusOr<PlanSearch> search) {
                                   if (!search.ok()) return call->Fail(search.status());
                                   if (search->candidates.empty()) return call->Fail(NoPlan(*search, seconds));
                                   call->Reply(ToProto(*search));
                                 });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::GetPipeline(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetPipelineRequest, v1::Pipeline>(
      gate_.Of("GetPipeline"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        const auto name = ParsePipelineName(call->request().name(), "name");
        if (!name.ok()) return call->Fail(name.status());
        if (absl::Status sees = CheckSees(call->identity(), *name); !sees.ok()) return call->Fail(sees);
        const auto entry = environment_.pipelines->Get(*name);
        if (!entry.ok()) return call->Fail(entry.status());
        call->Reply(ToProto(*entry, environment_.handles->epoch()));
      });
}

grpc::ServerUnaryReactor* PipelineServiceImpl::ListPipelines(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListPipelinesRequest, v1::ListPipelinesResponse>(
      gate_.Of("ListPipelines"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(List(call->identity(), call->request())); });
}

std::vector<PipelineEntry> PipelineServiceImpl::Seen(const Identity& identity, std::string after, int limit) const {
  std::vector<PipelineEntry> seen;
  std::vector<PipelineEntry> some;
  do {
    some = environment_.pipelines->List(after, limit);
    for (PipelineEntry& entry : some) {
      after = entry.name;
      if (static_cast<int>(seen.size()) < limit && identity.Sees(entry.name)) seen.push_back(std::move(entry));
    }
  } while (static_cast<int>(seen.size()) < limit && static_cast<int>(some.size()) == limit);
  return seen;
}

absl::StatusOr<v1::ListPipelinesResponse> PipelineServiceImpl::List(const Identity& identity,
                                                                    const v1::ListPipelinesRequest& request) {
  const std::string scope = "ListPipelines " + identity.name;
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(request.page_size()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string after, environment_.page_tokens->Read(scope, request.page_token()));
  // One more than asked for tells whether there is another page.
  std::vector<PipelineEntry> entries = Seen(identity, after, size + 1);
  v1::ListPipelinesResponse response;
  for (size_t i = 0; i < entries.size() && i < static_cast<size_t>(size); ++i) {
    *response.add_pipelines() = ToProto(entries[i], environment_.handles->epoch());
  }
  if (entries.size() > static_cast<size_t>(size)) {
    response.set_next_page_token(environment_.page_tokens->Make(scope, entries[size - 1].name));
  }
  return response;
}

grpc::ServerUnaryReactor* PipelineServiceImpl::UpdateOptimizer(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request,
                                                               grpc::ByteBuffer* response) {
  return ServeUnary<v1::UpdateOptimizerRequest, v1::Pipeline>(
      gate_.Of("UpdateOptimizer"), context, request, response, kSpecificationMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Update(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status PipelineServiceImpl::Update(const UnaryCallPtr<v1::UpdateOptimizerRequest, v1::Pipeline>& call) {
  const v1::UpdateOptimizerRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), true));
  call->set_request_id(request.request_id());
  PENSTOCK_ASSIGN_OR_RETURN(OptimizerSpec optimizer, FromProto(request.optimizer()));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, FindPipeline(environment_, call->identity(), request.name(), "name"));
  v1::UpdateOptimizerRequest named = request;
  if (request.optimizer().name().empty()) {
    optimizer.name = pipeline->pipeline().optimizer().name;
    named.mutable_optimizer()->set_name(optimizer.name);
  }
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call->caller(), pipeline->name()));
  call->Keep(ticket);
  CallContext context;
  context.caller = call->caller();
  context.session = call->session();
  context.request_id = request.request_id();
  context.payload_digest = PayloadDigest(request);
  context.recorded_digest = context.payload_digest;
  context.record = RecordOf(named);
  context.expected_state = request.expected_state();
  context.observer = call->trace();
  context.place = std::move(ticket);
  pipeline->UpdateOptimizer(std::move(context), std::move(optimizer),
                            [this, call, name = pipeline->name()](const auto& answer) {
                              if (!answer.ok()) return call->Fail(answer.status());
                              const auto entry = environment_.pipelines->Get(name);
                              if (!entry.ok()) return call->Fail(entry.status());
                              call->Reply(ToProto(*entry, environment_.handles->epoch()));
                            });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::UpdatePipeline(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::UpdatePipelineRequest, v1::Pipeline>(
      gate_.Of("UpdatePipeline"), context, request, response, kWorkMessageBytes,
      [this](const auto& call) {
        if (absl::Status accepted = Replan(call); !accepted.ok()) call->Fail(accepted);
      },
      environment_.memory);
}

absl::Status PipelineServiceImpl::Replan(const UnaryCallPtr<v1::UpdatePipelineRequest, v1::Pipeline>& call) {
  const v1::UpdatePipelineRequest& request = call->request();
  PENSTOCK_RETURN_IF_ERROR(CheckRequestId(request.request_id(), !request.validate_only()));
  call->set_request_id(request.request_id());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, ParsePipelineName(request.name(), "name"));
  PENSTOCK_RETURN_IF_ERROR(CheckSees(call->identity(), name));
  PENSTOCK_RETURN_IF_ERROR(CheckSize(request.spec()));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  // Its own error where it is not there or does not serve.
  PENSTOCK_RETURN_IF_ERROR(environment_.pipelines->Find(name).status());
  PENSTOCK_ASSIGN_OR_RETURN(const PipelineEntry entry, environment_.pipelines->Get(name));
  if (entry.pipeline == nullptr) return HasChanged(name);  // it was deleted, or has lost a rank, between the two
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe recipe, RecipeOver(entry, request));
  if (request.has_sample()) {
    PENSTOCK_ASSIGN_OR_RETURN(recipe.spec.sample, ReadSample(request.sample()));
  }
  const Epoch epoch = environment_.handles->epoch();
  if (request.validate_only()) {
    PENSTOCK_RETURN_IF_ERROR(CheckEtag(entry, epoch, request.etag(), entry.version));
    environment_.pipelines->Plan(
        call->caller(), recipe.spec, CancelOf(*call),
        [call, name, spec = recipe.spec](absl::StatusOr<Plan> plan) { call->Answer(PlannedOnly(name, spec, plan)); });
    return absl::OkStatus();
  }
  CallContext context;
  context.caller = call->caller();
  context.request_id = request.request_id();
  context.session = call->session();
  context.payload_digest = PayloadDigest(request);
  const auto accept = [&](const PipelineEntry& now) { return CheckEtag(now, epoch, request.etag(), entry.version); };
  environment_.pipelines->Update(std::move(context), name, std::move(recipe), accept,
                                 [call, epoch](absl::StatusOr<PipelineEntry> updated) {
                                   if (!updated.ok()) return call->Fail(updated.status());
                                   call->Reply(ToProto(*updated, epoch));
                                 });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::UnloadPipeline(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::UnloadPipelineRequest, v1::Pipeline>(gate_.Of("UnloadPipeline"), context, request, response,
                                                             kControlMessageBytes, [this](const auto& call) {
                                                               if (absl::Status accepted = Unload(call); !accepted.ok())
                                                                 call->Fail(accepted);
                                                             });
}

absl::Status PipelineServiceImpl::Unload(const UnaryCallPtr<v1::UnloadPipelineRequest, v1::Pipeline>& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, NamedFor(call));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  environment_.pipelines->Unload(ContextFor(call), name, AnswerPipeline(call, environment_.handles->epoch()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::LoadPipeline(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::LoadPipelineRequest, v1::Pipeline>(gate_.Of("LoadPipeline"), context, request, response,
                                                           kControlMessageBytes, [this](const auto& call) {
                                                             if (absl::Status accepted = Load(call); !accepted.ok())
                                                               call->Fail(accepted);
                                                           });
}

absl::Status PipelineServiceImpl::Load(const UnaryCallPtr<v1::LoadPipelineRequest, v1::Pipeline>& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, NamedFor(call));
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  environment_.pipelines->Load(ContextFor(call), name, AnswerPipeline(call, environment_.handles->epoch()));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PipelineServiceImpl::DeletePipeline(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return ServeUnary<v1::DeletePipelineRequest, v1::DeletePipelineResponse>(
      gate_.Of("DeletePipeline"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Delete(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status PipelineServiceImpl::Delete(
    const UnaryCallPtr<v1::DeletePipelineRequest, v1::DeletePipelineResponse>& call) {
  const v1::DeletePipelineRequest& request = call->request();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, NamedFor(call));
  environment_.pipelines->Delete(ContextFor(call), name, request.force(), request.purge(),
                                 [call](absl::Status deleted) {
                                   if (!deleted.ok()) return call->Fail(deleted);
                                   call->Reply(v1::DeletePipelineResponse());
                                 });
  return absl::OkStatus();
}

}  // namespace penstock

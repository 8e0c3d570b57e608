#pragma once

// How the methods of PipelineClient make their calls. Only its own files include this.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/call_error.h"
#include "client/lib/pipeline_client.h"
#include "client/lib/request_id.h"
#include "engine/base/status_macros.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "penstock/v1/admin_service.grpc.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "penstock/v1/journal_service.grpc.pb.h"
#include "penstock/v1/model_service.grpc.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"

namespace penstock {

inline constexpr int kItemsPerPage = 200;

template <typename Request>
void FillRequestId(Request* request) {
  if (request->request_id().empty()) request->set_request_id(NewRequestId());
}

// What a stub's method returns.
template <typename Method>
struct ResponseOf;
template <typename Stub, typename Request, typename Response>
struct ResponseOf<grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*)> {
  using type = Response;
};

struct PipelineClient::Stubs {
  Stubs(const std::shared_ptr<grpc::Channel>& control, const std::shared_ptr<grpc::Channel>& tensors)
      : pipelines(control),
        work(tensors),
        handles(control),
        tensor_handles(tensors),
        tensor_state(tensors),
        state(control),
        insight(control),
        insight_data(tensors),
        journals(control),
        models(control),
        model_data(tensors),
        inference(tensors),
        admin(control),
        health(control) {}

  v1::PipelineService::Stub pipelines;
  v1::WorkService::Stub work;
  v1::HandleService::Stub handles;
  v1::HandleService::Stub tensor_handles;
  v1::StateService::Stub tensor_state;
  v1::StateService::Stub state;
  v1::InsightService::Stub insight;
  v1::InsightService::Stub insight_data;
  v1::JournalService::Stub journals;
  v1::ModelService::Stub models;
  v1::ModelService::Stub model_data;
  inference::GRPCInferenceService::Stub inference;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
};

template <typename Stub, typename Method, typename Request>
auto PipelineClient::Call(Stub& stub, Method method, const Request& request, const std::string& request_id,
                          absl::Duration wait_for) {
  using Response = typename ResponseOf<Method>::type;
  Response response;
  const absl::Status status =
      runner_.Run(options_.call_deadline + wait_for, request_id, [&](grpc::ClientContext& context) {
        response.Clear();
        return DecodeCallError((stub.*method)(&context, request, &response), context);
      });
  return status.ok() ? absl::StatusOr<Response>(std::move(response)) : absl::StatusOr<Response>(status);
}

template <typename Item, typename Stub, typename Method, typename Request, typename ItemsOf>
absl::StatusOr<std::vector<Item>> PipelineClient::ListAll(Stub& stub, Method method, Request request,
                                                          const ItemsOf& items_of) {
  std::vector<Item> all;
  request.set_page_size(kItemsPerPage);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(auto page, Call(stub, method, request));
    for (Item& item : *items_of(page)) all.push_back(std::move(item));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

}  // namespace penstock

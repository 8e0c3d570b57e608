// Replacing, rotating and copying checkpoints, and pipelines that are made from them.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/serve/checkpoint_reader.h"
#include "engine/serve/saved_state.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CheckpointCallsTest : public HostingFixture {
 protected:
  absl::StatusOr<StateAnswer> Save(SaveCall save) {
    clock_.Advance(absl::Seconds(1));
    return Wait([&](auto done) { gpt_->SaveCheckpoint(Caller(), save, done); });
  }
  void Step() { Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome); }
  absl::StatusOr<StateAnswer> Copy(ServedPipeline& to, const std::string& from, const std::string& id,
                                   const std::string& as = "", const std::string& request_id = "") {
    return Wait([&](auto done) {
      to.CopyCheckpoint(Caller("ann", request_id),
                        {.source = checkpoints_->FindFolder(from), .source_id = id, .id = as}, done);
    });
  }
  static std::vector<std::string> Ids(const ServedPipeline& pipeline) {
    std::vector<std::string> ids;
    for (const CheckpointInfo& info : pipeline.ListCheckpoints()) ids.push_back(info.id);
    return ids;
  }
  absl::StatusOr<PipelineEntry> Make(const std::string& name, PipelineRecipe recipe,
                                     PipelineTable::AcceptExisting accept = nullptr,
                                     const std::string& request_id = "") {
    absl::StatusOr<PipelineEntry> answer;
    absl::Notification done;
    table_->Create({.caller = "ann", .request_id = request_id, .payload_digest = name}, name, std::move(recipe),
                   std::move(accept), [&](absl::StatusOr<PipelineEntry> entry) {
                     answer = std::move(entry);
                     done.Notify();
                   });
    done.WaitForNotification();
    return answer;
  }
};

TEST_F(CheckpointCallsTest, ASaveReplacesOnlyIfItIsAskedTo) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  Step();
  EXPECT_EQ(ReasonOf(Save({.id = "mine"}).status()), "CHECKPOINT_EXISTS");
  EXPECT_EQ(gpt_->ListCheckpoints()[0].step, 0);
  ASSERT_TRUE(Save({.id = "mine", .replace = true}).ok());
  EXPECT_EQ(gpt_->ListCheckpoints()[0].step, 1);
  EXPECT_EQ(Restore("mine")->step, 1);
}

TEST_F(CheckpointCallsTest, OfThoseSavedWithKeepTheNewestStay) {
  ASSERT_TRUE(Save({.id = "named"}).ok());
  for (int i = 0; i < 5; ++i) {
    Step();
    ASSERT_TRUE(Save({.keep = 2}).ok());
  }
  EXPECT_THAT(Ids(*gpt_), ElementsAre("named", "step-4", "step-5"));
  Step();
  ASSERT_TRUE(Save({}).ok());
  ASSERT_TRUE(Save({.id = "one-more", .keep = 1}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("named", "one-more", "step-6")) << "not those that were saved without it";
  ASSERT_TRUE(Save({.id = "one-more", .replace = true}).ok());
  ASSERT_TRUE(Save({.id = "last", .keep = 1}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("last", "named", "one-more", "step-6")) << "its replacement says what it is";
}

TEST_F(CheckpointCallsTest, TheOneThatWasRestoredFromStays) {
  for (int i = 0; i < 2; ++i) {
    Step();
    ASSERT_TRUE(Save({.keep = 2}).ok());
  }
  ASSERT_TRUE(Restore("step-1").ok());
  for (int i = 0; i < 3; ++i) {
    Step();
    ASSERT_TRUE(Save({.id = absl::StrCat("new-", i), .keep = 2}).ok());
  }
  EXPECT_THAT(Ids(*gpt_), ElementsAre("new-1", "new-2", "step-1"));
  ASSERT_TRUE(Restore("new-2").ok());
  ASSERT_TRUE(Save({.id = "after", .keep = 1}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("after", "new-2")) << "only the last one";
}

TEST_F(CheckpointCallsTest, ADamagedOneDoesNotCountAndStays) {
  for (int i = 0; i < 2; ++i) {
    Step();
    ASSERT_TRUE(Save({.keep = 2}).ok());
  }
  std::filesystem::resize_file(temporary_.path() + "/pipelines/gpt/checkpoints/step-2/state.safetensors", 10);
  EXPECT_EQ(ReasonOf(Restore("step-2").status()), "CHECKPOINT_CORRUPT");
  Step();
  ASSERT_TRUE(Save({.keep = 2}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("step-1", "step-2", "step-3")) << "two that are whole";
  Step();
  ASSERT_TRUE(Save({.keep = 2}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("step-2", "step-3", "step-4"));
}

TEST_F(CheckpointCallsTest, ASaveThatFailsDeletesNothing) {
  Step();
  ASSERT_TRUE(Save({.keep = 1}).ok());
  Step();
  files_.SetFreeBytes(10);
  EXPECT_EQ(ReasonOf(Save({.keep = 1}).status()), "STORAGE_FULL");
  EXPECT_THAT(Ids(*gpt_), ElementsAre("step-1"));
}

TEST_F(CheckpointCallsTest, AnOldOneThatCanNotBeDeletedDoesNotFailTheSave) {
  Step();
  ASSERT_TRUE(Save({.keep = 1}).ok());
  Step();
  files_.FailRename(2);  // of the manifest, of the checkpoint; then of the removal
  EXPECT_TRUE(Save({.keep = 1}).ok());
  EXPECT_THAT(Ids(*gpt_), ElementsAre("step-1", "step-2"));
  files_.FailRename(-1);
}

TEST_F(CheckpointCallsTest, TheNewestStaysWhateverTheClockSays) {
  for (const char* id : {"b", "a"}) {  // at one time, of one step
    ASSERT_TRUE(Wait([&](auto done) { gpt_->SaveCheckpoint(Caller(), {.id = id, .keep = 1}, done); }).ok());
  }
  EXPECT_THAT(Ids(*gpt_), ElementsAre("a"));
}

TEST_F(CheckpointCallsTest, TheOldestGoesAlsoWhereItsStepIsTheHighest) {
  ASSERT_TRUE(Save({.id = "begin"}).ok());
  for (int i = 0; i < 2; ++i) {
    Step();
    ASSERT_TRUE(Save({.keep = 2}).ok());
  }
  for (const char* id : {"again", "once-more"}) {
    ASSERT_TRUE(Restore("begin").ok());
    Step();
    ASSERT_TRUE(Save({.id = id, .keep = 2}).ok());
  }
  EXPECT_THAT(Ids(*gpt_), ElementsAre("again", "begin", "once-more")) << "not step-2";
}

TEST_F(CheckpointCallsTest, ACopyBelongsToItsPipelineWhichMayRestoreIt) {
  ASSERT_TRUE(Create("mlp").ok());
  const auto mlp = *table_->Find("mlp");
  Step();
  ASSERT_TRUE(Save({.id = "mine", .keep = 1}).ok());
  const absl::StatusOr<StateAnswer> copied = Copy(*mlp, "gpt", "mine");
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->checkpoint.pipeline, "mlp");
  EXPECT_EQ(copied->checkpoint.step, 1);
  EXPECT_FALSE(copied->checkpoint.rotating) << "nobody saved it with keep there";
  EXPECT_THAT(Ids(*mlp), ElementsAre("mine"));
  ASSERT_TRUE(Copy(*mlp, "gpt", "mine", "other").ok());
  EXPECT_EQ(Wait([&](auto done) { mlp->RestoreCheckpoint(Caller(), "other", false, done); })->step, 1);
  EXPECT_EQ(mlp->pipeline().step(), 1);
  EXPECT_EQ(ReasonOf(Copy(*mlp, "gpt", "mine", "other").status()), "CHECKPOINT_EXISTS");
  EXPECT_EQ(ReasonOf(Copy(*mlp, "gpt", "none").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Copy(*gpt_, "gpt", "mine").status()), "CHECKPOINT_EXISTS") << "onto itself";
  EXPECT_TRUE(Copy(*gpt_, "gpt", "mine", "again").ok()) << "under a new name";
  EXPECT_EQ(ReasonOf(Copy(*mlp, "gpt", "mine", "a/b").status()), "NAME_INVALID");
}

TEST_F(CheckpointCallsTest, ARetriedCopyGetsTheFirstAnswer) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  ASSERT_TRUE(Copy(*gpt_, "gpt", "mine", "again", "id").ok());
  EXPECT_TRUE(Copy(*gpt_, "gpt", "mine", "again", "id").ok());
  EXPECT_EQ(ReasonOf(Copy(*gpt_, "gpt", "mine", "again", "other-id").status()), "CHECKPOINT_EXISTS");
}

TEST_F(CheckpointCallsTest, ACopyOfADeletedPipelineAndAFullDiskInItsMiddle) {
  Step();
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  ASSERT_TRUE(Create("mlp").ok());
  const auto mlp = *table_->Find("mlp");
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  files_.SetFreeBytes(100);
  EXPECT_EQ(ReasonOf(Copy(*mlp, "gpt", "mine").status()), "STORAGE_FULL");
  files_.SetFreeBytes(-1);
  EXPECT_THAT(Ids(*mlp), IsEmpty());
  EXPECT_TRUE(Copy(*mlp, "gpt", "mine").ok()) << "nothing is lost";
}

TEST_F(CheckpointCallsTest, ACopyOfAnotherModelIsRefused) {
  const auto other = checkpoints_->FolderOf("other").value();
  const NamedTensors state = {{"scale.weight", at::full({1}, 2.0f)},
                              {"optimizer/scale.weight/momentum", at::full({1}, 0.5)}};
  const auto refused = [&](const std::string& id, const NamedTensors& saved, const std::string& digest = "digest") {
    EXPECT_TRUE(other->Save(id, {.step = 1, .spec_digest = digest}, saved).ok());
    const absl::Status status = Copy(*gpt_, "other", id).status();
    EXPECT_EQ(ReasonOf(status), "MODEL_MISMATCH") << id;
    EXPECT_EQ(ValuesOf(status)["checkpoint"], id);
    EXPECT_THAT(Ids(*gpt_), IsEmpty());
    return ValuesOf(status)["field"];
  };
  EXPECT_EQ(refused("missing", {state[1]}), "scale.weight");
  EXPECT_EQ(refused("shape", {{"scale.weight", at::full({2}, 2.0f)}, state[1]}), "scale.weight");
  EXPECT_EQ(refused("type", {{"scale.weight", at::full({1}, 2.0f).to(at::kDouble)}, state[1]}), "scale.weight");
  EXPECT_EQ(refused("more", {state[0], state[1], {"x", state[0].tensor}}), "x");
  EXPECT_EQ(refused("no-optimizer", {state[0]}), "optimizer/scale.weight/momentum");
  EXPECT_EQ(refused("program", state, "digest sha256:1"), "spec.model.program_digest");
  ASSERT_TRUE(other->Save("good", {.step = 1, .spec_digest = "another"}, state).ok());
  EXPECT_TRUE(Copy(*gpt_, "other", "good").ok()) << "the rest of the specification may differ";
}

TEST_F(CheckpointCallsTest, ACopyIsNoSaveOfTheState) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  Step();
  ASSERT_TRUE(Copy(*gpt_, "gpt", "mine", "copy").ok());
  absl::Notification done;
  bool saved = false;
  gpt_->SaveLast(std::make_shared<CancelToken>(), [&](const auto& answer) {
    saved = answer.ok() && answer->has_value();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_TRUE(saved) << "the step is in no checkpoint";
}

// --- Pipelines from checkpoints.

TEST_F(CheckpointCallsTest, APipelineStartsWhereACheckpointOfADeletedOneEnded) {
  Step();
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  Step();
  const float went_on = ValueOf(*gpt_->Infer(Caller(), Ask(1))->outputs);
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  const auto made = Make("new", {.spec_digest = "other", .from = CheckpointSource{"gpt", "mine"}});
  ASSERT_TRUE(made.ok()) << made.status();
  gpt_ = *table_->Find("new");
  EXPECT_EQ(gpt_->statistics().step, 1);
  Step();
  EXPECT_EQ(gpt_->statistics().step, 2);
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(1))->outputs), went_on);
}

TEST_F(CheckpointCallsTest, ACheckpointThatDoesNotFitMakesNoPipeline) {
  const auto other = checkpoints_->FolderOf("other").value();
  const auto refused = [&](const std::string& id) {
    const absl::Status status = Make("new", {.from = CheckpointSource{"other", id}}).status();
    EXPECT_EQ(ReasonOf(table_->Get("new").status()), "PIPELINE_NOT_FOUND");
    EXPECT_EQ(registry_.Find("new"), nullptr);
    EXPECT_EQ(ValuesOf(status)["pipeline"], "new");
    return ReasonOf(status);
  };
  EXPECT_EQ(refused("none"), "CHECKPOINT_NOT_FOUND");
  ASSERT_TRUE(other->Save("weights", {.step = 1}, {{"another.weight", at::full({1}, 1.0f)}}).ok());
  EXPECT_EQ(refused("weights"), "MODEL_MISMATCH");
  ASSERT_TRUE(
      other->Save("program", {.step = 1, .spec_digest = "d sha256:1"}, *gpt_->pipeline().ExportState(true)).ok());
  EXPECT_EQ(refused("program"), "MODEL_MISMATCH");
  EXPECT_TRUE(Create("new").ok()) << "the name is free";
}

TEST_F(CheckpointCallsTest, TheOneThatAPipelineWasMadeFromStays) {
  Step();
  ASSERT_TRUE(Save({.keep = 1}).ok());
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  ASSERT_TRUE(Make("gpt", {.from = CheckpointSource{"gpt", "step-1"}}).ok());
  gpt_ = *table_->Find("gpt");
  for (int i = 0; i < 2; ++i) {
    Step();
    ASSERT_TRUE(Save({.keep = 1}).ok());
  }
  EXPECT_THAT(Ids(*gpt_), ElementsAre("step-1", "step-3"));
}

TEST_F(CheckpointCallsTest, CheckpointsKeepWhatThePipelineIsDescribedAs) {
  PipelineRecipe recipe;
  recipe.spec.model.program_digest = "sha256:1";
  recipe.describe = [](const Plan& plan, const ModelSpec& model, const OptimizerSpec& optimizer) {
    return absl::StrCat(plan.schedule.micro_batches, " ", model.program_digest, " ", optimizer.clip_norm);
  };
  ASSERT_TRUE(Make("new", std::move(recipe)).ok());
  gpt_ = *table_->Find("new");
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  EXPECT_EQ(*checkpoints_->Find("new", "mine")->specification, "2 sha256:1 0");
  ASSERT_TRUE(Copy(*gpt_, "new", "mine", "copy").ok());
  EXPECT_EQ(*checkpoints_->Find("new", "copy")->specification, "2 sha256:1 0");
}

TEST_F(CheckpointCallsTest, CheckpointsKeepTheOptimizersSettingsOfTheirTime) {
  PipelineRecipe recipe;
  recipe.describe = [](const Plan&, const ModelSpec&, const OptimizerSpec& optimizer) {
    return absl::StrCat(optimizer.clip_norm);
  };
  ASSERT_TRUE(Make("new", std::move(recipe)).ok());
  gpt_ = *table_->Find("new");
  const auto update = [&](double clip_norm) {
    return Wait([&](auto done) { gpt_->UpdateOptimizer(Caller(), {.clip_norm = clip_norm}, done); }).ok();
  };
  ASSERT_TRUE(Save({.id = "first"}).ok());
  ASSERT_TRUE(Save({.id = "same"}).ok());
  ASSERT_TRUE(update(2));
  ASSERT_TRUE(Save({.id = "second"}).ok());
  ASSERT_TRUE(update(0));
  ASSERT_TRUE(Save({.id = "third"}).ok());
  const auto specification = [&](const std::string& id) { return checkpoints_->Find("new", id)->specification; };
  EXPECT_EQ(*specification("first"), "0");
  EXPECT_EQ(*specification("second"), "2");
  EXPECT_EQ(*specification("third"), "0");
  EXPECT_EQ(specification("first"), specification("same")) << "kept once";
}

TEST_F(CheckpointCallsTest, OfAnotherOptimizerWhatFitsIsKept) {
  const Pipeline& pipeline = gpt_->pipeline();  // scale.weight, optimizer/scale.weight/momentum: 0.5
  const at::Tensor weight = at::full({1}, 3.0f);
  const auto fit = [&](NamedTensors saved) {
    const NamedTensors fitted = FitState(std::move(saved), pipeline).value();
    EXPECT_TRUE(CheckState(fitted, pipeline.StateShapes()).ok());
    float momentum = 0;
    for (const NamedTensor& tensor : fitted) {
      if (tensor.name == "optimizer/scale.weight/momentum") momentum = tensor.tensor.item<float>();
      if (tensor.name == "scale.weight") {
        EXPECT_EQ(tensor.tensor.item<float>(), 3);
      }
    }
    return momentum;
  };
  const std::string slot = "optimizer/scale.weight/momentum";
  EXPECT_EQ(fit({{"scale.weight", weight}, {slot, at::full({1}, 7.0f)}}), 7);
  EXPECT_EQ(fit({{"scale.weight", weight}, {slot, at::full({2}, 7.0f)}}), 0.5) << "another shape: as in a new one";
  EXPECT_EQ(fit({{"scale.weight", weight}, {"optimizer/scale.weight/exp_avg", weight}}), 0.5) << "others are dropped";
}

// --- exist_ok.

TEST_F(CheckpointCallsTest, AnExistingPipelineIsTheAnswerIfItIsAccepted) {
  Step();
  ASSERT_TRUE(Wait([&](auto done) { gpt_->UpdateOptimizer(Caller(), {.clip_norm = 2}, done); }).ok());
  const auto accept = [](const PipelineEntry& entry) {
    EXPECT_EQ(entry.name, "gpt");
    EXPECT_EQ(entry.spec.optimizer.clip_norm, 2) << "as it is now";
    return absl::OkStatus();
  };
  const auto found = Make("gpt", {}, accept, "id");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->pipeline, gpt_);
  EXPECT_EQ(gpt_->statistics().step, 1) << "as it is";
  const auto refuse = [](const PipelineEntry&) -> absl::Status {
    return Error(absl::StatusCode::kAlreadyExists, "PIPELINE_EXISTS", "another");
  };
  EXPECT_EQ(ReasonOf(Make("gpt", {}, refuse).status()), "PIPELINE_EXISTS");
  EXPECT_EQ(ReasonOf(Make("gpt", {}).status()), "PIPELINE_EXISTS");
  EXPECT_TRUE(Make("new", {}, refuse).ok()) << "nobody is asked where there is none";
}

TEST_F(CheckpointCallsTest, OneThatIsBeingDeletedIsNotReady) {
  ASSERT_TRUE(Create("other").ok());
  absl::Notification busy;
  absl::Notification go;
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "other", false, false, [&](const absl::Status&) {
    busy.Notify();
    go.WaitForNotification();
  });
  busy.WaitForNotification();  // deletions run one after the other
  gpt_ = nullptr;
  table_->Delete({.caller = "ann"}, "gpt", false, false, [&](const absl::Status&) { deleted.Notify(); });
  const auto accept = [](const PipelineEntry&) { return absl::OkStatus(); };
  EXPECT_EQ(ReasonOf(Make("gpt", {}, accept).status()), "PIPELINE_NOT_READY");
  go.Notify();
  deleted.WaitForNotification();
}

TEST_F(CheckpointCallsTest, OneThatIsBeingMadeIsAwaited) {
  absl::Notification making;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {
    making.Notify();
    go.WaitForNotification();
  };
  absl::Notification first;
  absl::Notification second;
  absl::StatusOr<PipelineEntry> joined;
  table_->Create({.caller = "ann"}, "new", {}, nullptr, [&](const auto&) { first.Notify(); });
  making.WaitForNotification();
  table_->Create(
      {.caller = "bob"}, "new", {}, [](const auto&) { return absl::OkStatus(); },
      [&](auto entry) {
        joined = std::move(entry);
        second.Notify();
      });
  EXPECT_FALSE(second.HasBeenNotified());
  go.Notify();
  first.WaitForNotification();
  second.WaitForNotification();
  before_create_ = nullptr;
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->state, PipelineEntry::State::kReady);
}

// --- Checkpoints that deleted pipelines have left.

TEST_F(CheckpointCallsTest, ThoseOfADeletedPipelineCanBeDeleted) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  const auto remove = [&](const std::string& id, const std::string& request_id = "") {
    absl::Status answer;
    absl::Notification done;
    table_->DeleteCheckpoint({.caller = "ann", .request_id = request_id}, {"gpt", id}, [&](absl::Status status) {
      answer = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return ReasonOf(answer);
  };
  EXPECT_EQ(remove("mine"), "PIPELINE_NOT_READY") << "it lives";
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  EXPECT_EQ(remove("none"), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(remove("mine", "id"), "");
  EXPECT_EQ(remove("mine", "id"), "") << "a retry";
  EXPECT_EQ(remove("mine"), "CHECKPOINT_NOT_FOUND");
  EXPECT_TRUE(checkpoints_->List("", "", 10).empty());
}

// --- The content of a checkpoint, without a pipeline. ---

class CheckpointReaderTest : public CheckpointCallsTest {
 protected:
  using Content = absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>;

  Content Read(ReadCall read, std::string id = "mine") {
    Content content = absl::UnknownError("not called back");
    absl::Notification done;
    read.done = [&](Content answer) {
      content = std::move(answer);
      done.Notify();
    };
    reader_.Read(checkpoints_->FindFolder("gpt"), std::move(id), "ann", std::move(read), cancel_);
    done.WaitForNotification();
    return content;
  }
  static std::vector<std::string> Names(const Content& content) {
    std::vector<std::string> names;
    for (const NamedTensor& tensor : (*content)->tensors) names.push_back(tensor.name);
    return names;
  }

  MemoryLedger reads_{1 << 20};
  CheckpointReader reader_{&reads_};
  const std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
};

TEST_F(CheckpointReaderTest, GivesWhatWasSavedWhateverThePipelineDoesMeanwhile) {
  Step();
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  const at::Tensor saved = gpt_->pipeline().ExportState(false)->at(0).tensor.clone();
  Step();
  const Content weights = Read({});
  EXPECT_EQ((*weights)->step, 1);
  EXPECT_THAT(Names(weights), ElementsAre("scale.weight"));
  EXPECT_TRUE(at::equal((*weights)->tensors[0].tensor, saved));
  EXPECT_THAT(Names(Read({.content = ReadContent::kWithOptimizer})),
              ElementsAre("scale.weight", "optimizer/scale.weight/momentum"));
  EXPECT_THAT(Names(Read({.names = {"optimizer/scale.weight/momentum"}, .content = ReadContent::kWithOptimizer})),
              ElementsAre("optimizer/scale.weight/momentum"));
}

TEST_F(CheckpointReaderTest, NamesWhatACheckpointLacks) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  const absl::Status lacking = Read({.names = {"scale.weight", "other"}}).status();
  EXPECT_EQ(ReasonOf(lacking), "PARAMETER_NOT_FOUND");
  EXPECT_EQ(ValuesOf(lacking)["value"], "other");
  EXPECT_EQ(ReasonOf(Read({.names = {"optimizer/scale.weight/momentum"}}).status()), "PARAMETER_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Read({}, "yours").status()), "CHECKPOINT_NOT_FOUND");
  const std::string file = temporary_.path() + "/pipelines/gpt/checkpoints/mine/state.safetensors";
  std::filesystem::resize_file(file, 1);
  const absl::Status damaged = Read({}).status();
  EXPECT_EQ(ReasonOf(damaged), "CHECKPOINT_CORRUPT");
  EXPECT_EQ(ValuesOf(damaged)["pipeline"], "gpt");
}

TEST_F(CheckpointReaderTest, ClaimsWhatItHoldsUntilTheLastReaderLetsGo) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  const int64_t size = checkpoints_->Find("gpt", "mine")->bytes;
  Content content = Read({});
  EXPECT_EQ(reads_.bytes(), 4) << "one float";
  content = absl::UnknownError("");
  EXPECT_EQ(reads_.bytes(), 0);
  MemoryReservation others = *reads_.Take({}, reads_.limit_bytes() - 2 * size + 1);
  EXPECT_EQ(ReasonOf(Read({}).status()), "HOST_MEMORY") << "the file and its tensors do not fit at once";
  ASSERT_TRUE(others.Resize(reads_.limit_bytes() - 2 * size).ok());
  EXPECT_TRUE(Read({}).ok());
}

TEST_F(CheckpointReaderTest, LoadsNothingForOneThatHasLeft) {
  ASSERT_TRUE(Save({.id = "mine"}).ok());
  cancel_->Cancel();
  EXPECT_EQ(ReasonOf(Read({}).status()), "WORK_CANCELLED");
}

}  // namespace
}  // namespace penstock::testing

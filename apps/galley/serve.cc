// SPDX-License-Identifier: Apache-2.0
// `galley serve`: the engine behind the HTTP APIs.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <thread>

#include "command.h"
#include "files.h"
#include "galley/engine/engine.h"
#include "galley/net/http_server.h"
#include "galley/protocol/json.h"
#include "galley/serve/page/page.h"
#include "galley/serve/service.h"
#include "galley/text/utf8.h"
#include "gate.h"
#include "loading.h"
#include "stop_signal.h"

namespace galley::app {
namespace {

using protocol::Json;

constexpr std::size_t kKeyFileBytesMax = std::size_t{1} << 20;
constexpr std::chrono::seconds kLastWords{5};  // for error events after the time-out

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

Result<engine::EngineOptions> EngineOptionsOf(Context& context, const std::filesystem::path& model_dir) {
  const options::Values& values = context.values;
  engine::EngineOptions options;
  ASSIGN_OR_RETURN(options.speculation, ReadSpeculation(values));
  options.model_dir = model_dir;
  options.device = ReadDevice(context);
  options.on_load = ShowLoading(context.terminal);
  options.max_seq_len = values.Int("max-seq-len");
  options.max_seqs = static_cast<int>(values.Int("max-seqs"));
  options.step_rows_max = static_cast<int>(values.Int("step-rows"));
  options.blocks = static_cast<int>(values.Int("blocks"));
  options.snapshots = static_cast<int>(values.Int("snapshots"));
  options.memory_limit = values.Int("memory-limit");
  options.grammar_cache = values.Int("grammar-cache");
  options.replay = values.String("replay") == "exact" ? kv::ReplayMode::kExact : kv::ReplayMode::kBounded;
  options.itl_target_s = values.Float("itl-target-ms") * 1e-3;
  if (values.String("decoder-truncation") == "compact")
    options.decoder_keep = static_cast<int>(values.Int("decoder-keep"));
  // The service has the queue's limit; the engine's own is only a second line.
  options.queue_max = static_cast<int>(values.Int("max-queue")) * static_cast<int>(values.Int("max-choices"));
  return options;
}

net::ServerOptions ServerOptionsOf(const options::Values& values) {
  net::ServerOptions options;
  const std::string& host = values.String("host");
  const bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  options.listen = {fmt::format("{}{}{}:{}", bare_v6 ? "[" : "", host, bare_v6 ? "]" : "", values.Int("port"))};
  if (values.Has("unix-socket")) options.listen = {"unix:" + values.String("unix-socket")};
  options.tls = {.certificate = values.String("tls-certificate"), .key = values.String("tls-key")};
  options.handler_threads = static_cast<int>(values.Int("workers"));
  options.connections_max = static_cast<int>(values.Int("max-connections"));
  options.body_bytes_max = static_cast<std::size_t>(values.Int("max-body"));
  options.body_bytes_total_max = std::max(options.body_bytes_total_max, options.body_bytes_max);
  options.write_buffer_max = static_cast<std::size_t>(values.Int("max-write-buffer"));
  options.heartbeat = Milliseconds(values.Float("heartbeat"));
  options.idle_timeout = Milliseconds(values.Float("idle-timeout"));
  if (values.Has("cors-origin")) options.cors_origins = values.List("cors-origin");
  return options;
}

Result<serve::Keys> ReadKeys(const options::Values& values) {
  std::vector<std::string> keys;
  if (values.Has("api-key")) keys = values.List("api-key");
  if (values.Has("api-key-file")) {
    ASSIGN_OR_RETURN(const std::string content, ReadFile(values.String("api-key-file"), kKeyFileBytesMax));
    std::vector<std::string> more = serve::KeysOfFile(content);
    if (more.empty()) return Err(ErrorCode::kInvalidArgument, "has no key in it", values.String("api-key-file"));
    keys.insert(keys.end(), more.begin(), more.end());
  }
  return serve::Keys::Create(std::move(keys));
}

Result<serve::SamplingDefaults> ReadDefaults(const options::Values& values, const std::filesystem::path& model_dir) {
  const std::string& choice = values.String("generation-config");
  if (choice == "none" || choice == "vllm") return serve::SamplingDefaults{};
  std::filesystem::path file = choice;
  if (choice == "auto") {
    file = model_dir / "generation_config.json";
    std::error_code error;
    if (!std::filesystem::exists(file, error)) return serve::SamplingDefaults{};
  }
  ASSIGN_OR_RETURN(const std::string json, ReadFile(file, kConfigBytesMax));
  return serve::ReadGenerationConfig(json, file.string());
}

Result<std::vector<std::string>> ModelNames(const options::Values& values, const std::filesystem::path& model_dir) {
  if (values.Has("served-model-name") && !values.List("served-model-name").empty()) {
    const std::vector<std::string>& names = values.List("served-model-name");
    // They stand in JSON and in labels of metrics.
    for (const std::string& name : names) {
      const bool plain = std::none_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; });
      if (name.empty() || !plain || !text::IsValidUtf8(name))
        return Err(ErrorCode::kInvalidArgument,
                   "a model name is text in UTF-8 without control characters, and not empty", "--served-model-name");
    }
    return names;
  }
  // "models/nano/" ends in a separator, behind which there is no name.
  const std::filesystem::path dir = model_dir.has_filename() ? model_dir : model_dir.parent_path();
  const std::string name = dir.filename().string();
  return std::vector<std::string>{name.empty() || name == "." || name == ".." ? "model" : name};
}

// Whole lines, whichever thread they come from.
std::function<void(std::string)> LogTo(int descriptor) {
  auto mutex = std::make_shared<std::mutex>();
  return [mutex, descriptor](std::string line) {
    line += '\n';
    std::lock_guard lock(*mutex);
    // A log that cannot be written must not stop the server.
    [[maybe_unused]] const ssize_t written = ::write(descriptor, line.data(), line.size());
  };
}

std::string InfoJson(const engine::Engine& engine, const options::Values& values) {
  const auto memory = protocol::ParseJson(engine::ToJson(engine.memory_plan(), engine.memory_limit()));
  Json info = Json::MakeObject({{"backend", engine.compute().backend}});
  AddCompute(info, engine.compute());
  info.Set("max_seqs", values.Int("max-seqs")).Set("step_rows", values.Int("step-rows"));
  info.Set("block_tokens", engine.stats().block_tokens).Set("blocks", engine.stats().blocks_total);
  return DumpJson(info.Set("memory", memory ? *memory : Json()));
}

Result<serve::ServiceOptions> ServiceOptionsOf(const options::Values& values, const std::filesystem::path& model_dir) {
  serve::ServiceOptions options;
  ASSIGN_OR_RETURN(options.model_names, ModelNames(values, model_dir));
  options.version = GALLEY_VERSION;
  ASSIGN_OR_RETURN(options.defaults, ReadDefaults(values, model_dir));
  options.limits.body_bytes_max = static_cast<std::size_t>(values.Int("max-body"));
  options.default_thinking = values.Bool("default-thinking");
  options.stream_start_s = values.Float("heartbeat");
  options.prefix_cache = values.Bool("prefix-caching");
  options.max_queue = static_cast<int>(values.Int("max-queue"));
  options.n_max = static_cast<int>(values.Int("max-choices"));
  options.workers = static_cast<int>(values.Int("workers"));
  options.log_prompts = values.Bool("log-prompts");
  if (values.Bool("log-requests")) options.log = LogTo(STDERR_FILENO);
  std::random_device device;
  options.seed = (std::uint64_t{device()} << 32) | device();
  options.page = serve::PageHtml();
  return options;
}

// Shows how far loading is, as lines of the log where there is one; false once the server is to stop.
io::Progress WatchLoading(Gate& gate, const StopSignal& stop, Terminal& terminal,
                          const std::function<void(std::string)>& log) {
  return [&gate, &stop, &terminal, log](std::uint64_t done, std::uint64_t total) {
    if (const std::optional<LoadState> state = gate.Note(done, total)) {
      if (log) {
        log(DumpJson(ToJson(*state, serve::LogHead("loading"))));
      } else if (terminal.err_is_tty()) {
        terminal.Progress(ToLine(*state));
      } else {
        terminal.Note(ToLine(*state));
      }
    }
    return !stop.requested();
  };
}

void PrintBanner(Context& context, const engine::Engine& engine, const net::HttpServer& server,
                 const serve::ServiceOptions& options, const std::filesystem::path& model_dir, bool open) {
  Terminal& terminal = context.terminal;
  std::string names;
  for (const std::string& name : options.model_names) names += (names.empty() ? "" : ", ") + name;
  terminal.Note(fmt::format("galley {} serves {} from {} on {}", GALLEY_VERSION, names, model_dir.string(),
                            engine.compute().ToText()));
  std::string plan = engine::ToText(engine.memory_plan(), engine.memory_limit());
  while (plan.ends_with('\n')) plan.pop_back();
  terminal.Note(plan);
  terminal.Note(fmt::format("{} sequences at once, up to {} tokens each; {}", context.values.Int("max-seqs"),
                            engine.max_seq_len(), open ? "no API key: everybody may ask" : "API keys are required"));
  for (const std::string& address : server.addresses()) terminal.Note(fmt::format("listening on {}", address));
}

// Readiness goes first, so that traffic is sent elsewhere; then nothing new is taken, and what is open may end.
void ShutDown(const options::Values& values, serve::Service& service, net::HttpServer& server, Terminal& terminal) {
  terminal.Note(
      fmt::format("shutting down; {} requests are open. A second signal ends them at once.", service.open_requests()));
  service.SetReady(false);
  if (service.open_requests() > 0 || values.source("shutdown-grace") != options::Source::kDefault)
    std::this_thread::sleep_for(Milliseconds(values.Float("shutdown-grace")));
  service.RefuseNew();
  const bool idle = service.WaitIdle(Milliseconds(values.Float("shutdown-timeout")));
  if (!idle) {
    terminal.Note(fmt::format("{} requests did not end in time", service.open_requests()));
    service.Shutdown();
  }
  (void)server.Drain(kLastWords);
  server.Stop();
  terminal.Note("stopped");
}

}  // namespace

Result<int> RunServe(Context& context) {
  const options::Values& values = context.values;
  if (context.arguments.size() > 1)
    return Err(ErrorCode::kInvalidArgument, "takes one model only", context.arguments[1]);
  if (!context.arguments.empty() && values.source("model") == options::Source::kCommandLine)
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("the model is given twice, here and as --model {}", values.String("model")),
               context.arguments[0]);
  std::filesystem::path model_dir = context.arguments.empty() ? "" : context.arguments[0];
  if (model_dir.empty()) {
    ASSIGN_OR_RETURN(model_dir, ModelDir(context));
  }
  if (values.Has("tls-certificate") != values.Has("tls-key"))
    return Err(ErrorCode::kInvalidArgument, "needs both --tls-certificate and --tls-key", "TLS");
  ASSIGN_OR_RETURN(serve::Keys keys, ReadKeys(values));
  ASSIGN_OR_RETURN(serve::ServiceOptions options, ServiceOptionsOf(values, model_dir));
  grammar::Limits grammar_limits;
  RETURN_IF_ERROR(grammar::SetLimits(values.List("grammar-limits"), grammar_limits));
  net::ServerOptions server_options = ServerOptionsOf(values);
  Gate gate;
  server_options.on_rejected = std::bind_front(&Gate::NoteRejection, &gate);
  ASSIGN_OR_RETURN(const auto server, net::HttpServer::Create(server_options, std::bind_front(&Gate::Handle, &gate)));
  RETURN_IF_ERROR(CheckWeights(context, model_dir));

  ASSIGN_OR_RETURN(engine::EngineOptions engine_options, EngineOptionsOf(context, model_dir));
  const StopSignal stop;
  engine_options.on_load = WatchLoading(gate, stop, context.terminal, options.log);
  auto loaded = engine::Engine::Create(engine_options);
  context.terminal.Progress("");
  if (!loaded && loaded.error().code == ErrorCode::kCancelled && stop.requested()) {
    context.terminal.Note("stopped before the model was loaded");
    return kExitOk;
  }
  ASSIGN_OR_RETURN(const auto engine, std::move(loaded));
  options.info = InfoJson(*engine, values);
  const bool open = keys.open();
  ASSIGN_OR_RETURN(const auto port,
                   serve::PortOf(*engine, engine->config().eos_token_id, engine->config().vocab_size,
                                 static_cast<std::size_t>(engine_options.grammar_cache), grammar_limits));
  serve::Service service(*port, options, std::move(keys));
  gate.Open(service);
  PrintBanner(context, *engine, *server, options, model_dir, open);
  (void)stop.Wait();
  ShutDown(values, service, *server, context.terminal);
  return kExitOk;
}

}  // namespace galley::app

// SPDX-License-Identifier: Apache-2.0
// `galley chat`: a conversation in the terminal, or from a script that sends lines.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "answer.h"
#include "command.h"
#include "files.h"
#include "galley/base/nearest.h"
#include "galley/text/utf8.h"
#include "interrupt.h"
#include "prompt.h"

namespace galley::app {
namespace {

using protocol::Message;
using protocol::Role;

class ChatSession {
 public:
  ChatSession(Context& context, engine::Generator& generator, AnswerSettings settings)
      : context_(context),
        terminal_(context.terminal),
        generator_(generator),
        settings_(std::move(settings)),
        conversation_(ConversationOf(context.values)) {}

  // Until the input ends or the person leaves.
  Status Run();

 private:
  struct SlashCommand {
    std::string_view name;
    std::string_view argument;
    std::string_view help;
    void (ChatSession::*run)(std::string_view argument);
  };
  static const SlashCommand kSlashCommands[];

  void RunSlashCommand(std::string_view line);
  void Help(std::string_view argument);
  void Reset(std::string_view argument);
  void System(std::string_view argument);
  void Thinking(std::string_view argument);
  void SetEffort(std::string_view argument);
  void Stats(std::string_view argument);
  void Quit(std::string_view argument);

  // Answers `text`. An error is one that ends the session; what the person can mend is told and forgotten.
  Status Say(std::string text);
  // Whether the prompt leaves room for an answer; says what to do when not.
  bool Fits(std::size_t prompt_tokens);
  Result<Answer> Generate(std::vector<TokenId> prompt_ids);
  void Remember(const Answer& answer);

  [[nodiscard]] bool has_system() const {
    return !conversation_.messages.empty() && conversation_.messages.front().role == Role::kSystem;
  }
  [[nodiscard]] std::size_t exchanges() const { return (conversation_.messages.size() - (has_system() ? 1 : 0)) / 2; }
  // Most tokens of a sequence; 0 where nothing states it.
  [[nodiscard]] std::int64_t context_tokens() const;

  Context& context_;
  Terminal& terminal_;
  engine::Generator& generator_;
  AnswerSettings settings_;
  protocol::Conversation conversation_;
  Interrupt interrupt_;
  bool quit_ = false;
  std::size_t prompt_tokens_ = 0;  // of the last answer
  std::size_t answer_tokens_ = 0;
  std::string timings_ = {};
};

const ChatSession::SlashCommand ChatSession::kSlashCommands[] = {
    {"help", "", "list the commands", &ChatSession::Help},
    {"reset", "[N]", "forget the conversation, or all but its last N exchanges", &ChatSession::Reset},
    {"system", "[TEXT]", "set the system message, or show it", &ChatSession::System},
    {"thinking", "on|off", "let the model reason before it answers", &ChatSession::Thinking},
    {"effort", "low|high|max", "how thoroughly it reasons", &ChatSession::SetEffort},
    {"stats", "", "length of the conversation and speed of the last answer", &ChatSession::Stats},
    {"quit", "", "leave", &ChatSession::Quit},
};

Status ChatSession::Run() {
  const bool person = terminal_.in_is_tty() && terminal_.out_is_tty();
  if (person) terminal_.Write("A message for the model, or /help. Ctrl-C stops an answer, Ctrl-D ends.\n");
  while (!quit_ && !terminal_.output_closed() && terminal_.write_status()) {
    interrupt_.Reset();
    if (person) terminal_.Write("> ");
    std::string line;
    ASSIGN_OR_RETURN(const ReadEnd end, terminal_.ReadLine(interrupt_, line));
    if (end == ReadEnd::kEndOfInput) {
      if (person) terminal_.Write("\n");
      break;
    }
    if (end == ReadEnd::kInterrupted) {
      if (person) terminal_.Write("\n");
      continue;
    }
    if (const Status valid = text::ValidateUtf8(line, "message"); !valid) {
      terminal_.Complain(valid.error().ToString());
    } else if (line.starts_with('/') && !line.starts_with("//")) {
      RunSlashCommand(std::string_view(line).substr(1));
    } else if (!line.empty()) {
      if (line.starts_with('/')) line.erase(0, 1);  // a message that starts with a slash
      RETURN_IF_ERROR(Say(std::move(line)));
    }
  }
  return {};
}

void ChatSession::RunSlashCommand(std::string_view line) {
  const std::size_t space = std::min(line.find(' '), line.size());
  const std::string_view name = line.substr(0, space);
  std::string_view argument = line.substr(space);
  argument.remove_prefix(std::min(argument.find_first_not_of(' '), argument.size()));
  std::vector<std::string_view> names;
  for (const SlashCommand& command : kSlashCommands) {
    if (command.name == name) return (this->*command.run)(argument);
    names.push_back(command.name);
  }
  terminal_.Note(fmt::format("There is no command /{}{}.", name, Suggestion(name, names, "/")));
  Help({});
}

void ChatSession::Help(std::string_view /*argument*/) {
  std::string text;
  for (const SlashCommand& command : kSlashCommands) {
    text += fmt::format("{}/{:<22} {}", text.empty() ? "" : "\n", fmt::format("{} {}", command.name, command.argument),
                        command.help);
  }
  terminal_.Note(text + "\nA message that starts with a slash is written with two.");
}

void ChatSession::Reset(std::string_view argument) {
  std::size_t keep = 0;
  if (!argument.empty()) {
    const auto [end, code] = std::from_chars(argument.data(), argument.data() + argument.size(), keep);
    if (code != std::errc() || end != argument.data() + argument.size()) {
      return terminal_.Note("/reset takes the number of exchanges to keep, such as /reset 2.");
    }
  }
  const std::size_t drop = exchanges() - std::min(keep, exchanges());
  const auto first = conversation_.messages.begin() + (has_system() ? 1 : 0);
  conversation_.messages.erase(first, first + static_cast<std::ptrdiff_t>(2 * drop));
  terminal_.Note(fmt::format("{} exchanges forgotten, {} kept.", drop, exchanges()));
}

void ChatSession::System(std::string_view argument) {
  if (argument.empty()) {
    return terminal_.Note(has_system() ? WithoutControls(conversation_.messages.front().content)
                                       : std::string("There is no system message."));
  }
  if (!has_system()) conversation_.messages.insert(conversation_.messages.begin(), Message{});
  conversation_.messages.front().role = Role::kSystem;
  conversation_.messages.front().content = argument;
  terminal_.Note("The system message is set.");
}

void ChatSession::Thinking(std::string_view argument) {
  if (argument != "on" && argument != "off") return terminal_.Note("/thinking takes on or off.");
  conversation_.thinking = argument == "on";
  terminal_.Note(fmt::format("Thinking is {}.", argument));
}

void ChatSession::SetEffort(std::string_view argument) {
  const std::optional<protocol::Effort> effort = EffortOf(argument);
  if (!effort) return terminal_.Note("/effort takes low, high or max.");
  conversation_.effort = effort;
  terminal_.Note(fmt::format("Effort is {}.", argument));
}

void ChatSession::Stats(std::string_view /*argument*/) {
  const std::int64_t most = context_tokens();
  std::string text = fmt::format("{} exchanges; the last took {} tokens", exchanges(), prompt_tokens_ + answer_tokens_);
  if (most > 0) text += fmt::format(" of the {} that a conversation may have", most);
  terminal_.Note(text + ".");
  if (!timings_.empty()) terminal_.Note(timings_);
}

void ChatSession::Quit(std::string_view /*argument*/) {
  quit_ = true;
}

std::int64_t ChatSession::context_tokens() const {
  const std::int64_t set = context_.values.Int("max-seq-len"), stated = generator_.config().max_seq_len;
  return set > 0 && stated > 0 ? std::min(set, stated) : std::max(set, stated);
}

bool ChatSession::Fits(std::size_t prompt_tokens) {
  const std::int64_t most = context_tokens();
  if (most <= 0 || static_cast<std::int64_t>(prompt_tokens) < most) return true;
  terminal_.Note(
      fmt::format("The conversation has {} tokens, and {} is the most that the model takes. /reset starts anew, /reset "
                  "{} drops the older half; then send the message again.",
                  prompt_tokens, most, exchanges() / 2));
  return false;
}

Status ChatSession::Say(std::string text) {
  Message message;
  message.role = Role::kUser;
  message.content = std::move(text);
  conversation_.messages.push_back(std::move(message));
  ASSIGN_OR_RETURN(std::vector<TokenId> prompt_ids, EncodeConversation(conversation_, generator_.tokenizer()));
  const std::size_t prompt_tokens = prompt_ids.size();
  if (!Fits(prompt_tokens)) {
    conversation_.messages.pop_back();
    return {};
  }
  const Result<Answer> answer = Generate(std::move(prompt_ids));
  if (!answer) {
    conversation_.messages.pop_back();
    const ErrorCode code = answer.error().code;
    if (code != ErrorCode::kInvalidArgument && code != ErrorCode::kResourceExhausted) return Err(answer.error());
    terminal_.Complain(answer.error().ToString());
    return {};
  }
  prompt_tokens_ = prompt_tokens;
  answer_tokens_ = answer->result.tokens.size();
  timings_ = TimingsLine(prompt_tokens, answer->result);
  Remember(*answer);
  if (context_.values.Bool("show-timings")) terminal_.Note(timings_);
  return {};
}

Result<Answer> ChatSession::Generate(std::vector<TokenId> prompt_ids) {
  if (!settings_.seed_given) settings_.sampling.seed = DrawSeed();
  AnswerPrinter printer(terminal_, context_.environment);
  AnswerRequest request;
  request.prompt_ids = std::move(prompt_ids);
  request.thinking = conversation_.thinking;
  request.on_text = [&](Part part, std::string_view text) { printer.Print(part, text); };
  request.on_prefill = PrefillProgress(terminal_, context_.values.Int("prefill-chunk"));
  request.cancelled = [&] { return interrupt_.requested() || terminal_.output_closed() || !terminal_.write_status(); };
  Result<Answer> answer = GenerateAnswer(generator_, settings_, request);
  printer.End();
  return answer;
}

// Later prompts hold the answer without its reasoning: the renderer drops that where no tools are in play. An answer
// that never got past its reasoning says nothing, and the message counts as not sent.
void ChatSession::Remember(const Answer& answer) {
  const engine::FinishReason finish = answer.result.finish;
  if (finish == engine::FinishReason::kLength) {
    terminal_.Note(fmt::format("[stopped after {} tokens; --max-tokens sets the limit]", answer.result.tokens.size()));
  } else if (finish == engine::FinishReason::kCancelled) {
    terminal_.Note("[stopped]");
  }
  if (answer.text.empty() && finish != engine::FinishReason::kStop) {
    conversation_.messages.pop_back();
    return;
  }
  Message message;
  message.role = Role::kAssistant;
  message.content = answer.text;
  message.reasoning_content = answer.reasoning;
  conversation_.messages.push_back(std::move(message));
}

}  // namespace

Result<int> RunChat(Context& context) {
  ASSIGN_OR_RETURN(AnswerSettings settings, ReadAnswerSettings(context.values));
  ASSIGN_OR_RETURN(const std::filesystem::path model_dir, ModelDir(context));
  RETURN_IF_ERROR(CheckWeights(context, model_dir));
  ASSIGN_OR_RETURN(const engine::GeneratorOptions options, ReadGeneratorOptions(context, model_dir));
  ASSIGN_OR_RETURN(const auto generator, context.make_generator(options));
  ChatSession session(context, *generator, std::move(settings));
  RETURN_IF_ERROR(session.Run());
  return kExitOk;
}

}  // namespace galley::app

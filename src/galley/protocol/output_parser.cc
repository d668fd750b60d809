// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/output_parser.h"

#include <algorithm>
#include <array>

#include "galley/protocol/call_block.h"
#include "galley/protocol/json_scanner.h"
#include "galley/protocol/matcher.h"
#include "galley/protocol/segment_writer.h"

namespace galley::protocol {

using internal::BlockItem;
using internal::BlockReader;
using internal::CallParameter;
using internal::Effect;
using internal::HeldOutput;
using internal::JsonScanner;
using internal::kMarkerBytes;
using internal::Matcher;
using internal::ParsedCall;
using internal::SegmentWriter;
using internal::Span;
using internal::TextForm;

namespace {

constexpr std::string_view kMarker = "｜DSML｜";
constexpr std::string_view kThinkEndText = "</think>";
constexpr std::string_view kFenceEnd = "\n```";
static_assert(kMarker.size() == kMarkerBytes);

enum class State {
  kReasoning,
  kCommon,
  kJsonSeek,   // before the first JSON value
  kJsonValue,  // inside it
  kJsonAfter,  // behind it, where only white space stood so far
  kJsonDone,
  kBlock,  // inside tool markup: output is held back
  kDone,
};

enum class Action {
  kStop,
  kBlock,
  kStrayMarker,
  kHiddenMarker,
  kLeadingNewline,
  kThinkEnd,
  kFenceOpen,
  kJsonOpen,
  kFenceClose
};

struct Pattern {
  Action action;
  Matcher matcher;
  std::size_t stop = 0;  // kStop: index of the stop sequence
};

bool IsBlank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

class OutputParser::Impl {
 public:
  explicit Impl(OutputParserOptions options) : options_(std::move(options)), marker_(std::string(kMarker), kMarker) {
    const ParsingOptions& parsing = options_.parsing;
    if (parsing.starts_in_tool_calls) {
      EnterBlock(0);
      block_opened_ = true;
    } else if (parsing.stage == ThinkingStage::kReasoningStart ||
               parsing.stage == ThinkingStage::kReasoningContinuation) {
      Enter(State::kReasoning, parsing.stage == ThinkingStage::kReasoningStart);
    } else {
      Enter(Answer(), parsing.stage == ThinkingStage::kNone && !parsing.raw);
    }
  }

  void Push(OutputPiece piece, std::vector<OutputEvent>& events) {
    if (state_ == State::kDone) return;
    writer_.SetSink(&events);
    writer_.AddPiece(piece);
    input_ = std::move(piece.text);
    input_sources_.assign(input_.size(), piece.source);
    Drain();
    writer_.SetSink(nullptr);
  }

  void End(std::optional<Finish> finish, std::vector<OutputEvent>& events) {
    if (state_ == State::kDone) return;
    writer_.SetSink(&events);
    result_.finish = finish.value_or(Finish::kStop);
    // Leaving a block can hand bytes back to the other states, which may open another block.
    while (state_ == State::kBlock) {
      FinishBlock();
      Drain();
    }
    FinishText();
    state_ = State::kDone;
    writer_.SetSink(nullptr);
  }

  [[nodiscard]] bool done() const { return state_ == State::kDone; }
  [[nodiscard]] const OutputResult& result() const { return result_; }
  [[nodiscard]] std::int64_t tokens() const { return writer_.tokens(); }

 private:
  [[nodiscard]] bool json() const { return options_.parsing.parse_json_output; }
  [[nodiscard]] State Answer() const {
    if (!json()) return State::kCommon;
    return json_found_ ? State::kJsonDone : State::kJsonSeek;
  }

  // Entering a state sets up what it looks for, in order of precedence.
  void Enter(State state, bool leading) {
    state_ = state;
    leading_ = leading;
    patterns_.clear();
    const auto add = [&](Action action, std::string pattern, std::string_view special = {}, bool newlines = false) {
      patterns_.push_back({action, Matcher(std::move(pattern), special, newlines)});
    };
    if (state == State::kJsonSeek) {
      add(Action::kFenceOpen, "```json\n");
      add(Action::kFenceOpen, "```\n");
      add(Action::kJsonOpen, "{");
      add(Action::kJsonOpen, "[");
    }
    if (state == State::kCommon || state == State::kJsonValue || state == State::kJsonAfter) AddStops();
    if (state == State::kJsonValue || state == State::kJsonAfter) add(Action::kFenceClose, std::string(kFenceEnd));
    if (options_.parsing.hide_markup) add(Action::kHiddenMarker, std::string(kMarker), kMarker);
    if (options_.parsing.parse_tool_calls && state != State::kJsonValue) {
      add(Action::kBlock, "<" + std::string(kMarker), kMarker, true);
      const bool thinking = state == State::kReasoning;
      if (!thinking) add(Action::kBlock, "</" + std::string(kMarker), kMarker, true);
      if (thinking || state == State::kCommon) add(Action::kStrayMarker, std::string(kMarker), kMarker);
    }
    if (options_.parsing.raw) return;
    if (state == State::kReasoning || state == State::kCommon || state == State::kJsonSeek)
      add(Action::kLeadingNewline, "\n");
    if (state != State::kJsonValue)
      add(Action::kThinkEnd, std::string(kThinkEndText), kThinkEndText, state == State::kReasoning);
  }

  void AddStops() {
    for (std::size_t i = 0; i < options_.parsing.stop_sequences.size(); ++i)
      patterns_.push_back({Action::kStop, Matcher(options_.parsing.stop_sequences[i]), i});
  }

  [[nodiscard]] Effect StateEffect() const {
    if (state_ == State::kReasoning) return Effect::kReasoning;
    return state_ == State::kCommon || state_ == State::kJsonValue ? Effect::kContent : Effect::kDrop;
  }

  // Input ----------------------------------------------------------------------------------------------------------

  void Drain() {
    std::size_t at = 0;
    while (at < input_.size() && state_ != State::kDone) {
      if (state_ == State::kBlock) {
        HoldInput(at);
        at = 0;
        ReadBlock(false);
      } else {
        StepByte(input_[at], input_sources_[at]);
        ++at;
      }
    }
    if (state_ == State::kDone) writer_.Decide(std::string_view(input_).substr(at), Effect::kDrop);
    input_.clear();
    input_sources_.clear();
  }

  void Decide(std::size_t count, Effect effect, TextForm form = TextForm::kAsIs, std::string_view literal = {}) {
    if (count == 0) return;
    const std::string_view bytes = std::string_view(buffer_).substr(0, count);
    if (effect == Effect::kContent || effect == Effect::kJsonOpen) content_shown_ = true;
    if (state_ == State::kJsonSeek && junk_.size() < kJunkMax) junk_ += bytes;
    writer_.Decide(bytes, effect, form, literal);
    buffer_.erase(0, count);
  }

  void StepByte(char byte, PieceSource source) {
    const bool first = buffer_.empty();
    buffer_ += byte;
    // The blank of V4.1's tags belongs to the marker that was dropped.
    if (std::exchange(behind_marker_, false) && byte == ' ') {
      DropSilently(1);
      return;
    }
    Pattern* complete = nullptr;
    std::size_t live = 0;
    for (Pattern& pattern : patterns_) {
      // Only what stands at once at the beginning counts as a leading newline.
      if (pattern.action == Action::kLeadingNewline && !(leading_ && first)) continue;
      if (pattern.matcher.Step(byte, source) && complete == nullptr) complete = &pattern;
      if (pattern.action != Action::kLeadingNewline) live = std::max(live, pattern.matcher.live());
    }
    if (state_ == State::kJsonValue && JsonByte(byte, complete)) return;
    if (complete != nullptr) {
      Complete(*complete);
      return;
    }
    if (byte != '\n' || !first) leading_ = false;
    if (state_ == State::kJsonAfter) {
      HoldBlanks(live);
      return;
    }
    Decide(buffer_.size() - live, StateEffect());
  }

  void Restart() {
    for (Pattern& pattern : patterns_) pattern.matcher.Reset();
  }

  void Complete(Pattern& pattern) {
    const Action action = pattern.action;
    const std::size_t length = pattern.matcher.live();
    const std::size_t stop = pattern.stop;
    Decide(buffer_.size() - length, StateEffect());
    switch (action) {
      case Action::kStop:
        result_.stop_sequence = options_.parsing.stop_sequences[stop];
        result_.finish = Finish::kStop;
        Decide(length, options_.parsing.keep_stop ? StateEffect() : Effect::kDrop);
        state_ = State::kDone;
        return;
      case Action::kBlock:
        EnterBlock(length);
        return;
      case Action::kStrayMarker:
        // It opens nothing. In thinking it is no text; in content it may not become a tag with what was left there when
        // something between the two was dropped.
        Decide(length,
               state_ == State::kReasoning || writer_.content_tail().ends_with('<') || writer_.content_tail() == "</"
                   ? Effect::kDrop
                   : Effect::kContent);
        Restart();
        return;
      case Action::kHiddenMarker:
        DropSilently(length);
        Restart();
        behind_marker_ = true;
        return;
      case Action::kLeadingNewline:
        DropSilently(length);
        Restart();
        return;
      case Action::kThinkEnd: {
        const bool thinking = state_ == State::kReasoning;
        DropSilently(length);
        if (thinking)
          Enter(Answer(), true);
        else
          Restart();
        leading_ = thinking;
        return;
      }
      case Action::kFenceOpen:
        DropSilently(length);
        Enter(State::kJsonValue, false);
        json_found_ = true;
        scanner_ = JsonScanner();
        return;
      case Action::kJsonOpen: {
        const char bracket = buffer_.front();
        junk_.clear();
        json_found_ = true;
        // An event of its own, as clients of the original see it.
        writer_.Decide(buffer_, Effect::kJsonOpen);
        content_shown_ = true;
        buffer_.clear();
        Enter(State::kJsonValue, false);
        scanner_ = JsonScanner();
        (void)scanner_.Step(bracket);
        return;
      }
      case Action::kFenceClose:
        DropSilently(length);
        Enter(State::kJsonDone, false);
        return;
    }
  }

  // Dropped markup is no junk that could hold a bare value.
  void DropSilently(std::size_t length) {
    const std::size_t kept = junk_.size();
    Decide(length, Effect::kDrop);
    junk_.resize(std::min(junk_.size(), kept));
  }

  // JSON mode ------------------------------------------------------------------------------------------------------

  // Follows the value; true when this byte is dealt with.
  bool JsonByte(char byte, Pattern*& complete) {
    const bool stop = complete != nullptr && complete->action == Action::kStop;
    if (stop) return false;
    const bool bare = scanner_.bare();
    const bool ended = scanner_.Step(byte);
    // Three backticks end a bare value only: inside brackets they are part of a string.
    const bool fence = complete != nullptr && complete->action == Action::kFenceClose;
    if (fence && !(bare && scanner_.bare())) {
      complete->matcher.Reset();
      complete = nullptr;
    }
    if (!ended) return false;
    Decide(buffer_.size(), Effect::kContent);
    Enter(State::kJsonAfter, false);
    return true;
  }

  // White space behind the value belongs to it if nothing else follows.
  void HoldBlanks(std::size_t live) {
    const std::string_view settled = std::string_view(buffer_).substr(0, buffer_.size() - live);
    if (Trim(settled).empty()) return;
    Decide(settled.size(), Effect::kDrop);
    state_ = State::kJsonDone;
  }

  void FinishText() {
    if (state_ == State::kJsonAfter && Trim(buffer_).empty())
      Decide(buffer_.size(), Effect::kContent);
    else
      Decide(buffer_.size(), StateEffect());
    if (!json() || json_found_) return;
    // A whole answer that is a bare number, string, true, false or null is the value.
    const std::string_view text = Trim(junk_);
    if (junk_.size() < kJunkMax && ParseJson(text)) writer_.Insert(Effect::kContent, text);
  }

  // Tool markup ----------------------------------------------------------------------------------------------------

  // The last `length` bytes of the buffer, which are all of it, begin the markup.
  void EnterBlock(std::size_t length) {
    state_ = State::kBlock;
    held_ = {};
    held_.bytes = std::exchange(buffer_, {});
    held_sources_.assign(held_.bytes.size(), PieceSource::kText);
    block_opened_ = false;
    block_calls_ = 0;
    text_items_.clear();
    undecided_ = 0;
    marker_.Reset();
    if (length >= kMarkerBytes) held_.markers.push_back(length - kMarkerBytes);
    const std::size_t tag = held_.bytes.find('<');
    reader_ = BlockReader(tag == std::string::npos ? 0 : tag);
    read_markers_ = 0;
  }

  void HoldInput(std::size_t at) {
    for (; at < input_.size(); ++at) {
      held_.bytes += input_[at];
      held_sources_.push_back(input_sources_[at]);
      if (!marker_.Step(input_[at], input_sources_[at])) continue;
      held_.markers.push_back(held_.bytes.size() - kMarkerBytes);
      marker_.Reset();
    }
    input_.clear();
    input_sources_.clear();
  }

  // A call's parts are worth reading when a marker has come, or while a tag may be completed behind the last one.
  [[nodiscard]] bool WorthReading() const {
    constexpr std::size_t kTagTail = 256;
    if (held_.markers.size() > read_markers_) return true;
    return !held_.markers.empty() && held_.bytes.size() - held_.markers.back() < kTagTail;
  }

  void ReadBlock(bool at_end) {
    if (!at_end && !WorthReading()) return;
    read_markers_ = held_.markers.size();
    while (state_ == State::kBlock) {
      const std::size_t begin = reader_.cursor();
      const BlockItem item = reader_.Next(held_, at_end);
      const Span span{begin, reader_.cursor()};
      switch (item) {
        case BlockItem::kNeedMore:
          return;
        case BlockItem::kBlank:
          break;
        case BlockItem::kText:
          AddText(span);
          break;
        case BlockItem::kOpen:
          block_opened_ = true;
          if (block_calls_ > 0) DecidePending(span.end);
          break;
        case BlockItem::kCall:
          if (!Call(span)) AddText(span);
          break;
        case BlockItem::kClose:
          CloseBlock(span);
          break;
      }
    }
  }

  void AddText(Span span) {
    text_items_.push_back(span);
    // Without an opening tag this is no block.
    if (!block_opened_) LeaveAsText(span.end);
  }

  void CloseBlock(Span span) {
    if (block_calls_ == 0 && !(result_.calls > 0 && !block_opened_)) {
      LeaveAsText(span.end);
      return;
    }
    DecidePending(span.end);
    LeaveBlock(true);
  }

  // Everything up to `end` was no call: it goes to the client as text.
  void LeaveAsText(std::size_t end) {
    ShowText({undecided_, end});
    LeaveBlock(false);
  }

  void LeaveBlock(bool leading) {
    input_ = held_.bytes.substr(undecided_) + input_;
    input_sources_.insert(input_sources_.begin(), held_sources_.begin() + static_cast<std::ptrdiff_t>(undecided_),
                          held_sources_.end());
    held_ = {};
    held_sources_.clear();
    Enter(Answer(), leading);
  }

  void DecideHeld(std::size_t end, Effect effect, TextForm form = TextForm::kAsIs, std::string_view literal = {}) {
    if (end <= undecided_) return;
    if (effect == Effect::kContent) content_shown_ = true;
    writer_.Decide(std::string_view(held_.bytes).substr(undecided_, end - undecided_), effect, form, literal);
    undecided_ = end;
  }

  // Content without the markers, so that it can be read but is no markup any more. JSON mode shows nothing but a value.
  void ShowText(Span span) {
    const Effect effect = json() ? Effect::kDrop : Effect::kContent;
    DecideHeld(span.begin, Effect::kDrop);
    for (;;) {
      const std::size_t marker = held_.MarkerFrom(undecided_);
      if (marker >= span.end) break;
      DecideHeld(marker, effect);
      const std::size_t behind = marker + kMarkerBytes;
      DecideHeld(behind < span.end && held_.bytes[behind] == ' ' ? behind + 1 : behind, Effect::kDrop);
    }
    DecideHeld(span.end, effect);
  }

  // What was passed over before a call or the end of a block: text is shown, tags and white space are not.
  void DecidePending(std::size_t end) {
    for (Span span : text_items_) {
      if (span.end > end) break;
      while (!content_shown_ && span.begin < span.end && held_.bytes[span.begin] == '\n') ++span.begin;
      while (span.begin < span.end && held_.bytes[span.end - 1] == '\n') --span.end;
      ShowText(span);
    }
    text_items_.clear();
    DecideHeld(end, Effect::kDrop);
  }

  std::string_view Held(Span span) const {
    return std::string_view(held_.bytes).substr(span.begin, span.end - span.begin);
  }

  // Reports a call; false when it is none that the client could run.
  bool Call(Span span) {
    const ParsedCall& call = reader_.call();
    const std::string name(Held(call.name));
    const auto& names = options_.tool_names;
    if (std::find(names.begin(), names.end(), name) == names.end()) return false;
    const std::vector<CallParameter>& parameters = call.parameters;
    if (options_.custom_apply_patch && name == "apply_patch" &&
        (parameters.size() != 1 || Held(parameters[0].key) != "input" || !parameters[0].is_string))
      return false;
    DecidePending(span.begin);
    if (IsPlain(call))
      ShowPlainCall(call, name);
    else
      ShowMendedCall(call, name);
    DecideHeld(span.end, Effect::kDrop);
    ++block_calls_;
    ++result_.calls;
    if (!block_opened_) LeaveBlock(true);
    return true;
  }

  // Whether the arguments can be taken over part by part.
  [[nodiscard]] bool IsPlain(const ParsedCall& call) const {
    for (std::size_t i = 0; i < call.parameters.size(); ++i) {
      const CallParameter& p = call.parameters[i];
      const std::string_view key = Held(p.key);
      if (!p.exact || key.find_first_of(" \"\\") != std::string_view::npos) return false;
      if (std::any_of(key.begin(), key.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
        return false;
      if (!p.is_string && !ParseJson(Held(p.value))) return false;
      for (std::size_t k = 0; k < i; ++k)
        if (Held(call.parameters[k].key) == key) return false;
    }
    return held_.bytes[call.name_end] == '"';
  }

  void ShowPlainCall(const ParsedCall& call, const std::string& name) {
    constexpr std::size_t kCloser = 2 + kMarkerBytes;  // "</｜DSML｜"
    constexpr std::size_t kTrueTail = 6;               // `true">`
    DecideHeld(call.name_end, Effect::kDrop);
    DecideHeld(call.name_end + 1, Effect::kCallStart, TextForm::kLiteral, name);
    bool first = true;
    for (const CallParameter& p : call.parameters) {
      DecideHeld(p.open, Effect::kDrop);
      DecideHeld(p.key.begin - 1, Effect::kPunctuation, TextForm::kLiteral, std::exchange(first, false) ? "{" : ", ");
      DecideHeld(p.key.end + 1, Effect::kArguments);
      DecideHeld(p.key.end + 2, Effect::kPunctuation, TextForm::kLiteral, ": ");
      if (p.is_string) {
        DecideHeld(p.value.begin - kTrueTail, Effect::kDrop);
        DecideHeld(p.value.begin, Effect::kPunctuation, TextForm::kLiteral, "\"");
        DecideHeld(p.value.end, Effect::kArguments, TextForm::kEscaped);
        DecideHeld(p.value.end + kCloser, Effect::kPunctuation, TextForm::kLiteral, "\"");
      } else {
        DecideHeld(p.value.begin, Effect::kDrop);
        DecideHeld(p.value.end, Effect::kArguments);
        DecideHeld(p.value.end + kCloser, Effect::kDrop);
      }
    }
    DecideHeld(call.closer, Effect::kDrop);
    DecideHeld(call.closer + kCloser, Effect::kPunctuation, TextForm::kLiteral, call.parameters.empty() ? "{}" : "}");
  }

  // A call with keys to escape, values to mend or keys given twice: its arguments come as one valid object.
  void ShowMendedCall(const ParsedCall& call, const std::string& name) {
    std::vector<std::pair<std::string_view, std::string>> members;
    for (const CallParameter& p : call.parameters) {
      std::string value(Held(p.value));
      if (p.is_string || !ParseJson(value)) {
        std::string escaped = "\"";
        AppendEscaped(escaped, value);
        value = escaped + "\"";
      }
      const auto same =
          std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == Held(p.key); });
      if (same != members.end())
        same->second = std::move(value);  // the last value counts, at the place of the first
      else
        members.emplace_back(Held(p.key), std::move(value));
    }
    std::string arguments = "{";
    for (const auto& [key, value] : members) {
      if (arguments.size() > 1) arguments += ", ";
      arguments += '"';
      AppendEscaped(arguments, key);
      arguments += "\": " + value;
    }
    arguments += "}";
    DecideHeld(call.name_end, Effect::kDrop);
    DecideHeld(call.name_end + 1, Effect::kCallStart, TextForm::kLiteral, name);
    DecideHeld(call.closer, Effect::kDrop);
    DecideHeld(call.closer + 2, Effect::kPunctuation, TextForm::kLiteral, arguments);
  }

  // The output ended inside markup.
  void FinishBlock() {
    ReadBlock(true);
    if (state_ != State::kBlock) return;
    const std::size_t end = held_.bytes.size();
    const std::string_view rest = Trim(std::string_view(held_.bytes).substr(undecided_));
    const std::size_t marker = held_.MarkerFrom(undecided_);
    const bool cut_off = result_.finish != Finish::kStop;
    if (block_calls_ > 0 && (rest.empty() || IsClosingTag(rest))) {
      DecidePending(end);
    } else if (cut_off && marker != std::string::npos) {
      // A call that was cut off says nothing; plain text before it does.
      const std::size_t tag = held_.bytes.rfind('<', marker);
      ShowText({undecided_, std::max(undecided_, tag == std::string::npos ? marker : tag)});
      DecideHeld(end, Effect::kDrop);
    } else {
      ShowText({undecided_, end});
    }
    LeaveBlock(false);
  }

  // A closing tag, or what there is of one.
  static bool IsClosingTag(std::string_view text) {
    constexpr std::string_view kCloser = "</｜DSML｜";
    if (kCloser.starts_with(text)) return true;
    if (!text.starts_with(kCloser)) return false;
    return text.find_first_of("<\n", kCloser.size()) == std::string_view::npos;
  }

  static constexpr std::size_t kJunkMax = 4096;

  OutputParserOptions options_;
  SegmentWriter writer_;
  OutputResult result_;
  State state_ = State::kCommon;
  bool leading_ = false;        // nothing but newlines since the state began
  bool behind_marker_ = false;  // a marker that is not shown was the last thing
  std::vector<Pattern> patterns_;
  std::string buffer_;  // undecided bytes, outside blocks
  std::string input_;   // not yet looked at
  std::vector<PieceSource> input_sources_;
  bool content_shown_ = false;

  JsonScanner scanner_;
  bool json_found_ = false;
  std::string junk_;  // dropped text before a JSON value

  HeldOutput held_;
  std::vector<PieceSource> held_sources_;
  Matcher marker_;
  BlockReader reader_{0};
  std::size_t undecided_ = 0;     // where the undecided bytes of held_ begin
  std::size_t read_markers_ = 0;  // markers that the reader has seen
  bool block_opened_ = false;
  int block_calls_ = 0;
  std::vector<Span> text_items_;
};

OutputParserOptions ParserOptionsFor(const ParsedRequest& request) {
  OutputParserOptions options{request.parsing};
  for (const Tool& tool : request.conversation.tools) options.tool_names.push_back(tool.name);
  options.custom_apply_patch = request.custom_apply_patch;
  return options;
}

OutputParser::OutputParser(OutputParserOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

void OutputParser::Push(OutputPiece piece, std::vector<OutputEvent>& events) {
  impl_->Push(std::move(piece), events);
}
void OutputParser::End(std::optional<Finish> finish, std::vector<OutputEvent>& events) {
  impl_->End(finish, events);
}
bool OutputParser::done() const {
  return impl_->done();
}
const OutputResult& OutputParser::result() const {
  return impl_->result();
}
std::int64_t OutputParser::tokens() const {
  return impl_->tokens();
}

}  // namespace galley::protocol

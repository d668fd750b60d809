// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/snapshot_store.h"

#include <gtest/gtest.h>

#include <numeric>

#include "galley/kv/test_keys.h"

namespace galley::kv {
namespace {

struct Chat {
  std::vector<TokenId> tokens;
  KeyChain chain;
};

Chat MakeChat(int length, TokenId first = 0, std::string_view salt = "") {
  Chat chat{.tokens = std::vector<TokenId>(length), .chain = {}};
  std::iota(chat.tokens.begin(), chat.tokens.end(), first);
  chat.chain = MakeKeyChain(TestRoot(salt), chat.tokens);
  return chat;
}

SnapshotPoint At(Position position) {
  return {.position = position, .restart_from = std::max<Position>(0, position - 140), .encoder_floor = 0};
}

void Save(SnapshotStore& store, const Chat& chat, Position position) {
  const std::optional<SnapshotId> id = store.Reserve(chat.chain, chat.tokens, At(position));
  ASSERT_TRUE(id);
  store.Commit(*id);
}

TEST(SnapshotStore, FindsTheLongestStateThatIsAPrefix) {
  SnapshotStore store(4);
  const Chat chat = MakeChat(1000);
  Save(store, chat, 100);
  Save(store, chat, 300);
  Save(store, chat, 310);
  const int hits = 7;  // 1000 / 128
  EXPECT_EQ(store.Find(chat.chain, chat.tokens, hits, 0)->position, 310);
  EXPECT_EQ(store.Find(chat.chain, chat.tokens, 1, 0)->position, 100);  // blocks 1.. are gone: 300 is out of reach
  EXPECT_FALSE(store.Find(chat.chain, chat.tokens, hits, 311));
  // Another continuation of the first 305 tokens matches only up to where it agrees.
  Chat fork = MakeChat(1000);
  fork.tokens[305] = -7;
  EXPECT_EQ(store.Find(fork.chain, fork.tokens, 2, 0)->position, 300);
  EXPECT_EQ(store.Find(MakeChat(305).chain, MakeChat(305).tokens, 2, 0)->position, 300);
}

TEST(SnapshotStore, K9_AnotherSaltFindsNothing) {
  SnapshotStore store(2);
  Save(store, MakeChat(300, 0, "a"), 250);
  const Chat other = MakeChat(300, 0, "b");
  EXPECT_FALSE(store.Find(other.chain, other.tokens, 2, 0));
}

// A reserved place is not visible before its copy is known to be complete, and never after a failed one.
TEST(SnapshotStore, K1_AnUnfinishedOrFailedSaveIsNeverFound) {
  SnapshotStore store(2);
  const Chat chat = MakeChat(300);
  const std::optional<SnapshotId> id = store.Reserve(chat.chain, chat.tokens, At(250));
  ASSERT_TRUE(id);
  EXPECT_FALSE(store.Find(chat.chain, chat.tokens, 2, 0));
  store.Abandon(*id);
  EXPECT_FALSE(store.Find(chat.chain, chat.tokens, 2, 0));
  EXPECT_EQ(store.saving(), 0);
}

TEST(SnapshotStore, TheBudgetHoldsTheMostRecentlyUsed) {
  SnapshotStore store(2);
  const Chat a = MakeChat(200, 0), b = MakeChat(200, 1000), c = MakeChat(200, 2000);
  Save(store, a, 150);
  Save(store, b, 150);
  { const SnapshotRef pin = store.Pin(a.chain, a.tokens, 150); }  // a is used again
  Save(store, c, 150);
  EXPECT_TRUE(store.Find(a.chain, a.tokens, 1, 0));
  EXPECT_FALSE(store.Find(b.chain, b.tokens, 1, 0));
  EXPECT_TRUE(store.Find(c.chain, c.tokens, 1, 0));
}

TEST(SnapshotStore, PinnedAndSavingPlacesAreNotReused) {
  SnapshotStore store(2);
  const Chat a = MakeChat(200, 0), b = MakeChat(200, 1000), c = MakeChat(200, 2000);
  Save(store, a, 150);
  const SnapshotRef pin = store.Pin(a.chain, a.tokens, 150);
  const std::optional<SnapshotId> saving = store.Reserve(b.chain, b.tokens, At(150));
  ASSERT_TRUE(saving);
  EXPECT_FALSE(store.Reserve(c.chain, c.tokens, At(150)));
  store.Abandon(*saving);
  EXPECT_TRUE(store.Reserve(c.chain, c.tokens, At(150)));
}

TEST(SnapshotStore, TheSameStateIsSavedOnceUnlessItReachesDeeper) {
  SnapshotStore store(4);
  const Chat chat = MakeChat(400);
  const auto shallow =
      store.Reserve(chat.chain, chat.tokens, {.position = 350, .restart_from = 330, .encoder_floor = 0});
  ASSERT_TRUE(shallow);
  store.Commit(*shallow);
  EXPECT_FALSE(store.Reserve(chat.chain, chat.tokens, {.position = 350, .restart_from = 340, .encoder_floor = 0}));
  const auto deep = store.Reserve(chat.chain, chat.tokens, At(350));
  ASSERT_TRUE(deep);
  store.Commit(*deep);
  EXPECT_EQ(store.ready(), 1);
  EXPECT_EQ(store.Find(chat.chain, chat.tokens, 2, 0)->restart_from, 210);
}

TEST(SnapshotStore, NoBudgetMeansNoSnapshots) {
  SnapshotStore store(0);
  const Chat chat = MakeChat(200);
  EXPECT_FALSE(store.Reserve(chat.chain, chat.tokens, At(150)));
  EXPECT_FALSE(store.Find(chat.chain, chat.tokens, 1, 0));
}

}  // namespace
}  // namespace galley::kv

// SPDX-License-Identifier: Apache-2.0
// Runs the tile instructions themselves where the processor has none: it raises SIGILL for each, and the handler
// decodes the instruction, does it on emulated tiles and goes on behind it. So tests execute the machine code that
// ships, operand by operand, on any x86-64. Linux. For tests: thousands of times slower than the instructions. Threads:
// tiles are each thread's own; the handler is the process's while a TrappedTiles lives.
#pragma once

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>

#include "ops/cpu/amx_emulated.h"

namespace expertmesh::ops::cpu {

// NOLINTBEGIN(performance-no-int-to-ptr): registers hold addresses
// One tile instruction: VEX prefix of three bytes, opcode, operands. What else may stand there is not one.
class TileInstruction {
 public:
  // Carries out the instruction at the context's place and moves behind it; false: it is none.
  static bool run(ucontext_t& context) {
    auto& registers = context.uc_mcontext.gregs;
    const TileInstruction at(registers, reinterpret_cast<const uint8_t*>(registers[REG_RIP]));
    if (!at.is_vex_0f38_ || !at.run()) return false;
    registers[REG_RIP] += at.length_;
    return true;
  }

 private:
  enum Prefix { kNone, k66, kF3, kF2 };

  TileInstruction(const gregset_t& registers, const uint8_t* code) : registers_(registers) {
    is_vex_0f38_ = code[0] == 0xc4 && (code[1] & 0x1f) == 2;
    extends_base_ = (code[1] & 0x20) == 0;
    extends_index_ = (code[1] & 0x40) == 0;
    vector_ = (~code[2] >> 3) & 15;
    prefix_ = static_cast<Prefix>(code[2] & 3);
    opcode_ = code[3];
    mode_ = code[4] >> 6;
    reg_ = (code[4] >> 3) & 7;
    rm_ = code[4] & 7;
    length_ = 5;
    if (mode_ != 3) read_address(code);
  }

  int64_t value(int number) const {
    static constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kOrder[number]];
  }

  void read_address(const uint8_t* code) {
    const uint8_t* next = code + 5;
    bool has_base = true, is_after_code = false;
    int base = rm_ + (extends_base_ ? 8 : 0);
    if (rm_ == 4) {
      const uint8_t sib = *next++;
      const int index = ((sib >> 3) & 7) + (extends_index_ ? 8 : 0);
      base = (sib & 7) + (extends_base_ ? 8 : 0);
      has_base = (sib & 7) != 5 || mode_ != 0;
      if (index != 4) stride_ = value(index) << (sib >> 6);
    } else if (rm_ == 5 && mode_ == 0) {
      has_base = false;
      is_after_code = true;
    }
    int32_t displacement = 0;
    if (mode_ == 1) {
      displacement = static_cast<int8_t>(*next++);  // NOLINT(bugprone-signed-char-misuse): it has a sign
    } else if (mode_ == 2 || !has_base) {
      std::memcpy(&displacement, next, sizeof displacement);
      next += sizeof displacement;
    }
    length_ = static_cast<int>(next - code);
    address_ = displacement + (has_base ? value(base) : 0);
    if (is_after_code) address_ += reinterpret_cast<int64_t>(next);
  }

  bool run() const {
    TileFile& tiles = tile_file();
    const auto at = reinterpret_cast<void*>(address_);
    if (opcode_ == 0x49 && mode_ == 3 && prefix_ == kNone) return tiles.release(), true;
    if (opcode_ == 0x49 && mode_ == 3 && prefix_ == kF2) return tiles.zero(reg_), true;
    if (opcode_ == 0x49 && prefix_ == kNone) {
      TileConfig config;
      std::memcpy(&config, reinterpret_cast<const void*>(address_ + stride_), sizeof config);
      return tiles.configure(config), true;
    }
    if (opcode_ == 0x4b && mode_ != 3 && prefix_ == kF2) return tiles.load(reg_, at, stride_), true;
    if (opcode_ == 0x4b && mode_ != 3 && prefix_ == kF3) return tiles.store(reg_, at, stride_), true;
    if (opcode_ == 0x5c && mode_ == 3 && prefix_ == kF3) return tiles.multiply_add(reg_, rm_, vector_), true;
    return false;
  }

  const gregset_t& registers_;
  bool is_vex_0f38_, extends_base_, extends_index_;
  int vector_;
  Prefix prefix_;
  int opcode_, mode_, reg_, rm_, length_;
  int64_t address_ = 0, stride_ = 0;
};

// NOLINTEND(performance-no-int-to-ptr)

class TrappedTiles {
 public:
  TrappedTiles() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, &before_);
  }
  ~TrappedTiles() { sigaction(SIGILL, &before_, nullptr); }
  TrappedTiles(const TrappedTiles&) = delete;
  TrappedTiles& operator=(const TrappedTiles&) = delete;

 private:
  // noexcept: a failed check ends the process, with its message.
  static void handle(int /*signal*/, siginfo_t* /*info*/, void* context) noexcept {
    if (TileInstruction::run(*static_cast<ucontext_t*>(context))) return;
    constexpr char kText[] = "an unknown instruction, and none of AMX\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
    std::abort();
  }

  struct sigaction before_;
};

}  // namespace expertmesh::ops::cpu

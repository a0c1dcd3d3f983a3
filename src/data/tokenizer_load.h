// SPDX-License-Identifier: Apache-2.0
// The parts of loading a tokenizer, one for each section of the files. All fill a TokenizerSpec.
#pragma once

#include "data/tokenizer_json.h"
#include "data/tokenizer_spec.h"

namespace expertmesh::data {

// "model": vocabulary and merges.
void read_bpe_model(const JsonPlace& model, TokenizerSpec& spec);
// "added_tokens"; after the model.
void read_added_tokens(const JsonPlace& added, TokenizerSpec& spec);
// "normalizer", "pre_tokenizer", "post_processor", "decoder".
void read_pipeline(const JsonPlace& root, TokenizerSpec& spec);
// tokenizer_config.json; after the others.
void read_tokenizer_config(const JsonPlace& root, TokenizerSpec& spec);

}  // namespace expertmesh::data

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/FAMILY.json: texts that tokenizers get wrong, with the ids of the PyPI `tokenizers` library.

    REFERENCE_PYTHON tests/golden/make_tokenizer_goldens.py --tokenizers DIR

DIR holds the directories qwen3 and qwen3_5 that scripts/make_tokenizer.py made.
"""
import argparse
import json
import os

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = ["qwen3", "qwen3_5"]

TEXTS = {
    "plain": ["", "a", " ", "Hello world", "The quick brown fox jumps over the lazy dog.", "supercalifragilisticexpialidocious",
              "UPPER lower MiXeD camelCase snake_case kebab-case", "end of sentence.Next one", "...", "!?!?", "a,b;c:d"],
    "contractions": ["I'm you're he's we've they'll I'd can't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D CAN'T", "'s't're've'm'll'd",
                     "'S'T'RE'VE'M'LL'D", "'Re 'vE 'lL", "rock'n'roll 'tis o'clock", "it\u2019s don\u2019t", "'\u017f '\u017fo", "''s", "' s", "'sa 'ta"],
    "digits": ["0", "1234567890", "3.14159", "1,000,000", "2024-07-01T12:34:56Z", "0x1F 1e-9", "\u0661\u0662\u0663 \u0967\u0968\u0969 \uff11\uff12", "\u00bd \u2167 \u2460 \u00b2",
               "v1.2.3-rc4", "12 34  56"],
    "white space": ["  ", "   x", "x   ", "  two  spaces  ", "\t", "\t\tx", "a\tb", "\n", "\n\n", "\n\n\n", "a\nb", "a \n b", " \n", "\n ", "\r\n", "a\r\nb\r\n",
                    "\r", "\r\r", "a\n\n\n   b", "   \n   \n   ", "x \n\n\n ", " " * 40, "x" + " " * 100 + "y", "\n" * 50, "\t" * 30 + "x", "\u00a0x", "x\u00a0\u00a0y",
                    "\u3000\u3000x", "\u2003a\u2009b", "\u2028x\u2029y", "\u0085x", "\u1680x", "\u202fx\u205fy", "\u180ex a\u180eb", "\u200bx\u200by", "\ufeffx", "\x0bx\x0cy",
                    "!\n\n!", "!  \n", " !", "  !", " \t!"],
    "control characters": ["\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\x1c\x1d\x1e\x1f", "\ufffd\ufffe\uffff", "\U0010ffff", "\ue000\U000f0000"],
    "latin with marks": ["caf\u00e9", "cafe\u0301", "na\u00efve gr\u00f6\u00dfe \u00c5ngstr\u00f6m", "A\u030angstro\u0308m", "\u212bngstrom \u2126 \u212a", "e\u0323\u0301 e\u0301\u0323", "\u1ead a\u0323\u0302 a\u0302\u0323",
                         "q\u0307\u0323 q\u0323\u0307", "\u1e69 s\u0323\u0307 \u1e63\u0307 \u1e61\u0323", "\ufb01 \ufb03", "\u0149", "Xin ch\u00e0o th\u1eddi ti\u1ebft \u0111\u1eb9p", "\u0344", "a\u0344b", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e",
                         "\u2260 =\u0338", "\u01c5 \u01c4 \u01c6", "\u0130\u0131"],
    "hindi and neighbours": ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0915\u093c \u0958", "\u0958\u0959\u095a", "\u09ac\u09be\u0982\u09b2\u09be \u09c7\u09be \u09cb", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bc6\u0bbe \u0bca", "\u0c95\u0ca8\u0ccd\u0ca8\u0ca1 \u0cc6\u0cc2\u0cd5 \u0ccb",
                             "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a", "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b", "\u0f71\u0f72 \u0f73", "\u1019\u103c\u1014\u103a\u1019\u102c", "\u1019\u1025\u102e \u1026", "\u0dc3\u0dd2\u0d82\u0dc4\u0dbd \u0dd9\u0dcf"],
    "arabic and hebrew": ["\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0627\u0644\u0652\u0642\u064f\u0631\u0652\u0622\u0646", "\u0622 \u0627\u0653", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u05e9\u05bc\u05c1 \ufb2c", "\u05d1\u05bc\u05b0\u05e8\u05b5\u05d0\u05e9\u05b4\u05c1\u05d9\u05ea", "\u202babc\u202c \u2067x\u2069", "\u06f1\u06f2\u06f3\u060c \u061f"],
    "east asian": ["\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3002\u30ab\u30bf\u30ab\u30ca\u30fc", "\u304b\u3099 \u304c \u30cf\u309a \u30d1", "\uc548\ub155\ud558\uc138\uc694", "\u1100\u1161\u11a8 \uac01 \uac00\u11a8 \u1100\u1161",
                   "\uff21\uff22\uff23 \uff8a\uff9f\uff70", "\U00020bb7\u91ce\u5bb6 \U0002f800 \uf900", "\u7684" * 60, "\u4e2d\u6587English\u6df7\u5408123"],
    "emoji": ["\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f468\U0001f3fd\u200d\U0001f4bb", "\U0001f1f3\U0001f1f4\U0001f1e9\U0001f1ea", "\u2764\ufe0f\u200d\U0001f525", "\u2603 \u2603\ufe0f \u2603\ufe0e", "1\ufe0f\u20e3 #\ufe0f\u20e3",
              "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "\U0001f44d\U0001f3fb\U0001f44d\U0001f3ff", "\U0001f469\u200d" * 40, "text\U0001f600text"],
    "code": ["def f(x):\n    return x + 1\n", "\tif (a && b) {\n\t\tc->d = e[0];\n\t}\n", "for(int i=0;i<n;++i)sum+=a[i];", "#include <stdio.h>\n\nint main(void) { return 0; }\n", "SELECT * FROM t WHERE a='b''c';",
             "<div class=\"x\">&amp;</div>", "\\begin{equation}\\frac{1}{2}\\end{equation}", "$HOME/.config; rm -rf -- \"$x\"", "{\"a\": [1, 2, {\"b\": null}]}", "https://example.com/a?b=c&d=%20#e", "__init__ _x_ __",
             "// comment\r\n/* more */\r\n", "a==b!=c<=d>=e<<f>>g", "x\u2192y \u2200\u03b5>0 \u2203\u03b4", "----------\n==========\n"],
    "added tokens": ["<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "<|im_start|><|im_start|>", "<|im_end", "<|im_end|", "<<|im_end|>>", " <|im_end|> ", "<think>\n\n</think>\n\nok", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
                     "<\u200b|im_start|>", "<|im_\u200bstart|>", "<think", "</think>x", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<tts_text_bos_single><tts_text_bos>", "<|audio_pad|>", "e<|im_end|>\u0301"],
    "repetition": ["a" * 300, "ab" * 300, "abc" * 1000, "=" * 257, "\u00e9" * 200, " a" * 200, "0" * 50, "A" * 33, "\u0301" * 20, "ha" * 16],
    # Letters, digits and marks that came with Unicode 15 and 16, and marks that only an old normalisation table lacks.
    "newer characters": ["\U0001e4d0\U0001e4d1 \U0001e4f0", "\U00011f02\U00011f03\U00011f50", "\U00010d50\U00010d4a x", "\U000105c0\U000105d2\u0307", "\u1c89\u1c8a", "\ua7cb\ua7da", "\U00011380\U000113b8 \U000113c2", "\U0002ebf0\U0002ebf1", "\U00031350",
                         "e\u08d0\u0301", "e\u0898\u0301", "\u08ca\u0f73", "\U0001ccf0", "\U00016d40\U00016d63", "\U0001e08f", "\u0897"],
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizers", required=True, help="the directory of qwen3/ and qwen3_5/")
    arguments = parser.parse_args()
    os.makedirs(os.path.join(HERE, "tokenizer"), exist_ok=True)
    for family in FAMILIES:
        tokenizer = Tokenizer.from_file(os.path.join(arguments.tokenizers, family, "tokenizer.json"))
        rows = []
        for kind, texts in TEXTS.items():
            for text in texts:
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                row = {"kind": kind, "text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}
                rows.append(json.dumps(row, ensure_ascii=True))
        with open(os.path.join(HERE, "tokenizer", family + ".json"), "w", encoding="ascii") as file:
            file.write("[\n" + ",\n".join(rows) + "\n]\n")
        print(family, len(rows), "texts")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns a byte-level BPE tokenizer.json into the vocabulary file of `galley grammar-serve --vocab`.

Usage: tokenizer_to_vocabulary.py tokenizer.json[.xz] VOCAB_SIZE EOS_ID > vocabulary.json
Added tokens are control tokens; ids without a token have no bytes.
"""
import base64
import json
import lzma
import sys


def byte_of_char():
    """The printable stand-ins that byte-level BPE uses for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def main():
    path, size, eos = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with (lzma.open if path.endswith('.xz') else open)(path, 'rt', encoding='utf-8') as f:
        data = json.load(f)
    table = byte_of_char()
    tokens = [None] * size
    for text, i in data['model']['vocab'].items():
        if all(c in table for c in text):  # control tokens may be listed here too, spelled out
            tokens[i] = base64.b64encode(bytes(table[c] for c in text)).decode()
    special, names = [], {}
    for token in data['added_tokens']:
        i = token['id']
        tokens[i] = None
        special.append(i)
        names[str(i)] = token['content']
    json.dump({'vocab_size': size, 'eos': [eos], 'special': special, 'names': names, 'tokens': tokens}, sys.stdout)


if __name__ == '__main__':
    main()

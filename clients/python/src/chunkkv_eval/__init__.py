"""What compression costs in answers: small tasks on a local model, with every kept set chosen by the daemon.

    chunkkv-eval --model DIR_OR_GGUF --task number --context 1024 --n 100 --method chunkkv,snapkv --keep 0.1,0.2 \\
        --json OUT

`model` runs the language model, `daemon` finds or starts a chunkkvd, `selector` asks it what every method keeps,
`tasks` and `haystack` make the questions, `runner` puts them together, `results` counts, `plots` and `report` show
it. Everything but `model` and `runner` works without torch.
"""

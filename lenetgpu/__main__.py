"""`python -m lenetgpu` is `lenetgpu`."""

from lenetgpu.cli import main

if __name__ == "__main__":
    main()

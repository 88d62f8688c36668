# Builds the proxy of main.rs. Cargo.lock pins Pingora, which must be $VERSION, and what it uses.
grep -q "^version = \"$VERSION\"" Cargo.toml
cargo install --locked --path . --root "$OUT"
rm -f "$OUT"/.crates*

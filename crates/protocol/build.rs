//! Compiles the schema with a protobuf compiler written in Rust, so `protoc` is not needed.

fn main() {
    let files = [
        "hq/common.proto",
        "hq/alloc.proto",
        "hq/handshake.proto",
        "hq/worker.proto",
        "hq/client.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed=proto/{file}");
    }
    let schema = protox::compile(files, ["proto"]).expect("the schema in proto/ is valid");
    prost_build::Config::new()
        .bytes(["."])
        .include_file("schema.rs")
        .compile_fds(schema)
        .expect("code generation from a valid schema succeeds");
}

//! Compiles the C code that keeps no frame pointer.

fn main() {
    println!("cargo:rerun-if-changed=c/frameless.c");
    cc::Build::new()
        .file("c/frameless.c")
        .opt_level(2)
        // Whatever the rest is built with: that this has none is its purpose.
        .force_frame_pointer(false)
        .flag("-fomit-frame-pointer")
        .flag("-fasynchronous-unwind-tables")
        .compile("frameless");
}

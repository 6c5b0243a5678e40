//! Compiles the C code without frame pointers.

fn main() {
    println!("cargo:rerun-if-changed=c/frameless.c");
    cc::Build::new()
        .file("c/frameless.c")
        .opt_level(2)
        // Independent of the other flags: this code must have no frame pointers.
        .force_frame_pointer(false)
        .flag("-fomit-frame-pointer")
        .flag("-fasynchronous-unwind-tables")
        .compile("frameless");
}

//! Error numbers of the hypervisor (`errno.h`).

use core::fmt;

/// Why a hypercall failed: Xen's positive error number.
///
/// A number without a name survives, and shows as itself.
///
/// ```
/// use xen_sys_lite::Errno;
/// assert_eq!(Errno::from_result(-22), Err(Errno::EINVAL));
/// assert_eq!(Errno::from_result(3), Ok(3));
/// assert_eq!(Errno(4095).to_string(), "error 4095");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u32);

macro_rules! errno {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!($text, ".")] pub const $name: Self = Self($value);)*

            /// Name of the number, if it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errno! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such entity";
    ESRCH = 3, "No such domain";
    EIO = 5, "Input or output failed";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Too long";
    EAGAIN = 11, "Try again";
    ENOMEM = 12, "Out of memory";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    EBUSY = 16, "Busy";
    EEXIST = 17, "Exists already";
    ENODEV = 19, "No such device";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    ENOSPC = 28, "No space left";
    EROFS = 30, "Read only";
    ENOSYS = 38, "Not implemented";
    ENOTEMPTY = 39, "Not empty";
    ETIME = 62, "The time has passed";
    EOPNOTSUPP = 95, "Not supported";
    EISCONN = 106, "Connected already";
}

impl Errno {
    /// Converts a hypercall's return value: negative numbers are errors.
    ///
    /// # Errors
    /// The error number, for a negative `value`.
    pub const fn from_result(value: i64) -> Result<u64, Self> {
        if value >= 0 {
            Ok(value.unsigned_abs())
        } else {
            let number = value.unsigned_abs();
            Err(Self(if number > u32::MAX as u64 { u32::MAX } else { number as u32 }))
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Errno {}

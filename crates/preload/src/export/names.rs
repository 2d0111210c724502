//! The C library's resolver: its questions to name servers are served where paths lead to these ([`crate::dispatch`]).
//!
//! `getaddrinfo` stands beside it (`configured.rs`). Left out: `getaddrinfo_a`, which asks in threads of its own.

use std::ffi::{c_char, c_int, c_uchar, c_void};

use libc::{sockaddr, socklen_t};

use crate::dispatch::resolving;
use crate::real;

/// Functions of the resolver by the names that they have for programs: before glibc 2.34 some had another one.
macro_rules! resolver {
    ($( $($symbol:literal),+ => fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty; )*) => { $(
        mod $name {
            #[allow(clippy::wildcard_imports)]
            use super::*;
            resolver!(@each $name ($($arg: $ty),*) -> $ret, $($symbol),+);
        }
    )* };
    (@each $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty, $symbol:literal) => {
        #[unsafe(export_name = $symbol)]
        extern "C-unwind" fn new($($arg: $ty),*) -> $ret {
            resolving(|| real::$name($($arg),*))
        }
    };
    (@each $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty, $symbol:literal, $old:literal) => {
        resolver!(@each $name ($($arg: $ty),*) -> $ret, $symbol);
        #[unsafe(export_name = $old)]
        extern "C-unwind" fn old($($arg: $ty),*) -> $ret {
            new($($arg),*)
        }
    };
}

resolver! {
    "getnameinfo" => fn getnameinfo(address: *const sockaddr, len: socklen_t, host: *mut c_char, host_len: socklen_t,
        service: *mut c_char, service_len: socklen_t, flags: c_int) -> c_int;
    "gethostbyname" => fn gethostbyname(name: *const c_char) -> *mut c_void;
    "gethostbyname2" => fn gethostbyname2(name: *const c_char, family: c_int) -> *mut c_void;
    "gethostbyname_r" => fn gethostbyname_r(name: *const c_char, entry: *mut c_void, room: *mut c_char, len: usize,
        result: *mut *mut c_void, error: *mut c_int) -> c_int;
    "gethostbyname2_r" => fn gethostbyname2_r(name: *const c_char, family: c_int, entry: *mut c_void,
        room: *mut c_char, len: usize, result: *mut *mut c_void, error: *mut c_int) -> c_int;
    "gethostbyaddr" => fn gethostbyaddr(address: *const c_void, len: socklen_t, family: c_int) -> *mut c_void;
    "gethostbyaddr_r" => fn gethostbyaddr_r(address: *const c_void, len: socklen_t, family: c_int,
        entry: *mut c_void, room: *mut c_char, room_len: usize, result: *mut *mut c_void, error: *mut c_int) -> c_int;
    "res_query", "__res_query" => fn res_query(name: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar,
        len: c_int) -> c_int;
    "res_search", "__res_search" => fn res_search(name: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, len: c_int) -> c_int;
    "res_querydomain", "__res_querydomain" => fn res_querydomain(name: *const c_char, domain: *const c_char,
        class: c_int, kind: c_int, answer: *mut c_uchar, len: c_int) -> c_int;
    "res_send", "__res_send" => fn res_send(question: *const c_uchar, question_len: c_int, answer: *mut c_uchar,
        len: c_int) -> c_int;
    "res_nquery", "__res_nquery" => fn res_nquery(state: *mut c_void, name: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, len: c_int) -> c_int;
    "res_nsearch", "__res_nsearch" => fn res_nsearch(state: *mut c_void, name: *const c_char, class: c_int,
        kind: c_int, answer: *mut c_uchar, len: c_int) -> c_int;
    "res_nquerydomain", "__res_nquerydomain" => fn res_nquerydomain(state: *mut c_void, name: *const c_char,
        domain: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar, len: c_int) -> c_int;
    "res_nsend", "__res_nsend" => fn res_nsend(state: *mut c_void, question: *const c_uchar, question_len: c_int,
        answer: *mut c_uchar, len: c_int) -> c_int;
}

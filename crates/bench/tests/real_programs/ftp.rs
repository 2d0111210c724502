//! vsftpd: each connection is served by a child with 200 MB of address space, namespaces of its own and a seccomp filter;
//! data go over connections of their own, which either side opens.

use std::fs;
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt;

use crate::fixture::{Arm, Fixture, SOON, assert_same, twins, write_file};

twins!(vsftpd_serves);

const PORT: u16 = 2121;

fn vsftpd_serves(arm: Arm) {
    let fixture = Fixture::new(arm);
    let (root, empty) = (fixture.file("ftp"), fixture.file("empty"));
    for directory in [&root, &empty] {
        fs::create_dir(directory).unwrap();
        // Anonymous users own nothing and may write nowhere.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o555)).unwrap();
    }
    // Its children are somebody else.
    fs::set_permissions(fixture.testbed().directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = root.join("file");
    write_file(&file, 3);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let configuration = fixture.file("vsftpd.conf");
    let text = format!(
        "listen=YES
listen_address={}
listen_port={PORT}
background=NO
anonymous_enable=YES
no_anon_password=YES
anon_root={}
secure_chroot_dir={}
",
        fixture.address(),
        root.display(),
        empty.display()
    );
    fs::write(&configuration, text).unwrap();
    let mut server = fixture.start("vsftpd", &[&configuration.display().to_string()]);
    fixture.wait_for_port(SocketAddrV4::new(fixture.address(), PORT), &mut server);
    let base = format!("ftp://{}:{PORT}/", fixture.address());
    let (copy, url) = (fixture.file("copy"), format!("{base}file"));
    // Passive by EPSV and by PASV, and active.
    for way in [&[][..], &["--disable-epsv"], &["--ftp-port", "-"]] {
        let list = fixture.run_peer("curl", &[way, &["-sS", &base]].concat(), SOON);
        assert!(list.contains("3145728") && list.contains("file"), "{way:?}: {list}");
        fixture.run_peer("curl", &[way, &["-sS", "-o", &copy.display().to_string(), &url]].concat(), SOON);
        assert_same(&file, &copy);
    }
    server.check().unwrap();
}

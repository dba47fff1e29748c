#!/bin/sh
# finish.sh ROOT: makes an installed root bootable and blank. mmdebstrap runs it as its customize hook, as the root of
# whatever namespace it is in. These come from the environment:
#   CONFIGURATION   a folder whose files are laid over the root
#   ESP             a folder that gets the files of the EFI system partition
#   ROOT_UUID       the UUID that the root file system will have
#   ROOT_PARTITION  its partition as GRUB names it, such as gpt1
#   DISTRIBUTION    its ID in os-release, which is also its folder on the EFI system partition
set -eu
umask 022

root=$1
inside() { chroot "$root" "$@"; }
say() { echo "I: finishing: $*" >&2; }

say configuration
cp -R --no-preserve=ownership "$CONFIGURATION/." "$root/"
ln -sf /run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
inside systemctl --quiet enable systemd-networkd systemd-resolved systemd-timesyncd
mkdir -p "$root/boot/efi"

say boot loader
# The files that grub-install puts there; it cannot be run, since there is no disk yet.
for target in i386-pc x86_64-efi; do
    mkdir -p "$root/boot/grub/$target"
    cp "$root/usr/lib/grub/$target"/*.mod "$root/usr/lib/grub/$target"/*.lst "$root/boot/grub/$target/"
done
cp "$root/usr/lib/grub/i386-pc/boot.img" "$root/boot/grub/i386-pc/"
inside grub-mkimage --format=i386-pc --prefix="(,$ROOT_PARTITION)/boot/grub" \
    --output=/boot/grub/i386-pc/core.img biosdisk part_gpt ext2
inside grub-editenv /boot/grub/grubenv create

mkdir -p "$ESP/EFI/BOOT" "$ESP/EFI/$DISTRIBUTION"
inside cat /usr/lib/shim/shimx64.efi.signed > "$ESP/EFI/BOOT/BOOTX64.EFI"
# Debian's signed MokManager ends in .signed; Ubuntu's does not.
inside cat /usr/lib/shim/mmx64.efi.signed > "$ESP/EFI/BOOT/mmx64.efi" 2> /dev/null ||
    inside cat /usr/lib/shim/mmx64.efi > "$ESP/EFI/BOOT/mmx64.efi"
inside cat /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed > "$ESP/EFI/BOOT/grubx64.efi"
cp "$ESP/EFI/BOOT/BOOTX64.EFI" "$ESP/EFI/$DISTRIBUTION/shimx64.efi"
cp "$ESP/EFI/BOOT/mmx64.efi" "$ESP/EFI/BOOT/grubx64.efi" "$ESP/EFI/$DISTRIBUTION/"
# What a machine's firmware makes a boot entry of, should somebody start fbx64.efi.
inside cat /usr/lib/shim/fbx64.efi.signed > "$ESP/EFI/$DISTRIBUTION/fbx64.efi" 2> /dev/null ||
    inside cat /usr/lib/shim/fbx64.efi > "$ESP/EFI/$DISTRIBUTION/fbx64.efi"
inside cat /usr/lib/shim/BOOTX64.CSV > "$ESP/EFI/$DISTRIBUTION/BOOTX64.CSV"
cat > "$ESP/EFI/$DISTRIBUTION/grub.cfg" << END
search.fs_uuid $ROOT_UUID root hd0,$ROOT_PARTITION
set prefix=(\$root)'/boot/grub'
configfile \$prefix/grub.cfg
END

say boot menu
# update-grub asks grub-probe what the root is on, and looks for its UUID in /dev: a stand-in answers for the disk to
# come, as the real one does on a machine that booted from it.
by_uuid=$root/dev/disk/by-uuid
mkdir -p "$by_uuid"
: > "$by_uuid/$ROOT_UUID"
mv "$root/usr/sbin/grub-probe" "$root/usr/sbin/grub-probe.real"
cat > "$root/usr/sbin/grub-probe" << END
#!/bin/sh
case " \$* " in
*fs_uuid*) echo $ROOT_UUID ;;
*partuuid*) ;;
*compatibility_hint*) echo hd0,$ROOT_PARTITION ;;
*hints_string*) echo "--hint-bios=hd0,$ROOT_PARTITION --hint-efi=hd0,$ROOT_PARTITION --hint-baremetal=ahci0,$ROOT_PARTITION " ;;
*partmap*) echo gpt ;;
*abstraction*) ;;
*=drive*) echo "(hd0,$ROOT_PARTITION)" ;;
*=device*) echo /dev/sda1 ;;
*=fs*) echo ext2 ;;
*) echo "grub-probe: not known before the first boot: \$*" >&2; exit 1 ;;
esac
END
chmod 755 "$root/usr/sbin/grub-probe"
inside update-grub
mv "$root/usr/sbin/grub-probe.real" "$root/usr/sbin/grub-probe"
rm -r "$root/dev/disk"
[ ! -d "$root/etc/grub.d" ] || [ "$DISTRIBUTION" != debian ] || : > "$root/etc/grub.d/enable_cloud"

say cleaning
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/apt/apt.conf.d/99mmdebstrap"
rm -f "$root/var/cache/ldconfig/aux-cache" "$root"/var/cache/apt/*.bin "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/archives/*.deb
: > "$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id" "$root/var/lib/systemd/random-seed"
find "$root/var/log" -type f -exec truncate --size=0 {} +

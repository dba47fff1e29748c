/* The only program of a guest without a system: it binds every TPU function to vfio-pci, uses it through the whole VFIO
 * API (linux/vfio.h), says a line about each step as "ADDRESS STEP VALUE", and switches the machine off. */

#include <dirent.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEVICES "/sys/bus/pci/devices/"
#define MAPPED (2u << 20)
#define IOVA (1ull << 30)

static const char *address;

static void say(const char *step, long long value) { printf("%s %s %lld\n", address, step, value); }

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    say("write", file >= 0 && write(file, text, strlen(text)) > 0);
    close(file);
}

static int is_google(void) {
    char path[300], vendor[8] = "";
    snprintf(path, sizeof path, DEVICES "%s/vendor", address);
    int file = open(path, O_RDONLY);
    long length = read(file, vendor, 6);
    close(file);
    return length == 6 && !strcmp(vendor, "0x1ae0");
}

static int open_group(void) {
    char path[300], link[300] = "";
    snprintf(path, sizeof path, DEVICES "%s/driver_override", address);
    put(path, "vfio-pci");
    put("/sys/bus/pci/drivers_probe", address);
    snprintf(path, sizeof path, DEVICES "%s/iommu_group", address);
    if (readlink(path, link, sizeof link - 1) < 0) return -1;
    int number = -1;
    sscanf(strrchr(link, '/') + 1, "%d", &number);
    say("group", number);
    snprintf(path, sizeof path, "/dev/vfio/%d", number);
    return open(path, O_RDWR);
}

static unsigned long long region(int device, unsigned index, unsigned long long *size, unsigned *flags) {
    struct vfio_region_info info = {.argsz = sizeof info, .index = index};
    ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &info);
    *size = info.size;
    *flags = info.flags;
    return info.offset;
}

static void use_bar(int device, unsigned index) {
    unsigned long long size, offset;
    unsigned flags, written = 0x12345678 + index, found = 0;
    offset = region(device, index, &size, &flags);
    say(index ? "bar4-size" : "bar0-size", size);
    pwrite(device, &written, 4, offset + 64);
    pread(device, &found, 4, offset + 64);
    say("bar-reads-back", found == written);
    volatile unsigned *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, device, offset);
    if (memory != MAP_FAILED) memory[32] = 77;
    say("bar-is-mapped", memory != MAP_FAILED && memory[32] == 77 && memory[16] == written);
}

static void use_memory(int container) {
    void *memory = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct vfio_iommu_type1_dma_map map = {
        .argsz = sizeof map, .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        .vaddr = (unsigned long)memory, .iova = IOVA, .size = MAPPED};
    struct vfio_iommu_type1_dma_unmap unmap = {.argsz = sizeof unmap, .iova = IOVA, .size = MAPPED};
    say("map", ioctl(container, VFIO_IOMMU_MAP_DMA, &map));
    say("unmap", ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap));
    say("map-again", ioctl(container, VFIO_IOMMU_MAP_DMA, &map));
}

static void use_device(int container, int group) {
    say("set-container", ioctl(group, VFIO_GROUP_SET_CONTAINER, &container));
    say("set-iommu", ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
    int device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address);
    say("device", device >= 0);
    struct vfio_device_info info = {.argsz = sizeof info};
    ioctl(device, VFIO_DEVICE_GET_INFO, &info);
    say("flags", info.flags);
    unsigned long long size, offset;
    unsigned flags, ids = 0, after = 1;
    offset = region(device, VFIO_PCI_CONFIG_REGION_INDEX, &size, &flags);
    pread(device, &ids, 4, offset);
    say("ids", ids);
    use_bar(device, 0);
    use_bar(device, 4);
    use_memory(container);
    say("reset", ioctl(device, VFIO_DEVICE_RESET));
    offset = region(device, 0, &size, &flags);
    pread(device, &after, 4, offset + 64);
    say("after-reset", after);
    close(device);
}

static void use(void) {
    int container = open("/dev/vfio/vfio", O_RDWR), group = open_group();
    if (container >= 0 && group >= 0) use_device(container, group);
    close(group);
    close(container);
}

int main(void) {
    mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755);
    mount("proc", "/proc", "proc", 0, 0), mount("sys", "/sys", "sysfs", 0, 0), mount("dev", "/dev", "devtmpfs", 0, 0);
    int console = open("/dev/console", O_RDWR);
    dup2(console, 1);
    setvbuf(stdout, 0, _IONBF, 0);
    for (int number = 0; ; number++) {
        char name[32];
        snprintf(name, sizeof name, "/%d.ko", number);
        int file = open(name, O_RDONLY);
        if (file < 0) break;
        syscall(SYS_finit_module, file, "", 0);
        close(file);
    }
    DIR *directory = opendir(DEVICES);
    for (struct dirent *entry; (entry = readdir(directory));) {
        address = entry->d_name;
        if (address[0] != '.' && is_google()) use();
    }
    address = "all";
    say("done", 0);
    sync();
    reboot(RB_POWER_OFF);
    for (;;) pause();
}

/* A program that does nothing, for static linking: what is left is the cost of a process itself. */
int main(void)
{
    return 0;
}
